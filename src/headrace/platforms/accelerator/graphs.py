"""A step that is captured once per bucket and then replayed: one launch instead of one per operator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from headrace.errors import DeviceLost, HeadraceError
from headrace.kernels.step_inputs import PERSISTENT
from headrace.platforms.accelerator.async_copies import AsyncCopies
from headrace.platforms.accelerator.error_patterns import first_line, root_cause
from headrace.platforms.accelerator.torch_runtime import TorchRuntime
from headrace.platforms.interface import KV, StepFn, Tensor

__all__ = ["Capturing", "GraphStep"]

T = TypeVar("T")
_MAX_CAPTURED = 8
"""Most captured shapes of one step. The engine always passes the shapes of the step's bucket, so it needs one. No
captured shape is replaced by another, so that a step is not captured again at every call."""


class Capturing(Protocol):
    """The members of a device that a captured step uses."""

    runtime: TorchRuntime
    compute: Any
    copies: AsyncCopies
    pool: Any

    def translate(self, error: Exception) -> HeadraceError: ...

    def timed(self, launch: Callable[[], T]) -> T:
        """What `launch` gives, which captures nothing."""

    def run_eagerly(self, reason: str) -> None:
        """Log once why steps are not captured."""


@dataclass(slots=True)
class _Captured:
    graph: Any
    statics: dict[str, Tensor]
    outputs: dict[str, Tensor]
    """Buffers outside the memory pool of the graphs, so that other graphs' temporaries don't overwrite them."""
    same: dict[str, str]
    """Output → the persistent input that it is."""
    kv: KV
    last: dict[str, Tensor] = field(default_factory=dict)

    def replay(self, inputs: Mapping[str, Tensor], device: Capturing) -> dict[str, Tensor]:
        device.copies.settle()
        changed: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        for name, tensor in inputs.items():
            # A tensor never changes after `put`: if it is the same tensor, its copy is still valid.
            if name not in PERSISTENT and self.last.get(name) is not tensor:
                targets, sources = changed[tensor.dtype]
                targets.append(self.statics[name])
                sources.append(tensor)
        for targets, sources in changed.values():
            torch._foreach_copy_(targets, sources)
        self.last = dict(inputs)
        device.timed(self.graph.replay)
        # New objects, since the values are new: an output may be the input of another step.
        fresh = {name: x.detach() for name, x in self.outputs.items()}
        return fresh | {name: inputs[source] for name, source in self.same.items()}


class GraphStep:
    """Runs a step exactly once per call, eagerly or as a graph.

    The first call of a shape is eager, which compiles and binds what is made on first use; the step is captured right
    after it, and later calls replay the graph. A step that cannot be captured stays eager.
    """

    def __init__(self, device: Capturing, step_fn: StepFn) -> None:
        self._device = device
        self._step_fn = step_fn
        self._captured: dict[Hashable, _Captured] = {}
        self._eager = False

    def __call__(self, kv: KV, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if self._eager:
            return self._launch(kv, inputs)
        key = _key(kv, inputs)
        captured = self._captured.get(key)
        if captured is not None:
            return captured.replay(inputs, self._device)
        outputs = self._launch(kv, inputs)
        if len(self._captured) >= _MAX_CAPTURED:
            self._device.run_eagerly(f"a step is captured for at most {_MAX_CAPTURED} shapes")
            return outputs
        try:
            self._captured[key] = self._capture(kv, inputs, outputs)
        except Exception as error:
            self._give_up(error)
        return outputs

    def _launch(self, kv: KV, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Operator by operator."""
        return self._device.timed(lambda: self._step_fn(kv, inputs)[1])

    def _capture(self, kv: KV, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> _Captured:
        device = self._device
        statics = {name: x if name in PERSISTENT else x.clone() for name, x in inputs.items()}
        same = {o: i for o, x in outputs.items() for i in PERSISTENT & inputs.keys() if x is inputs[i]}
        buffers = {name: torch.empty_like(x) for name, x in outputs.items() if name not in same}
        graph = device.runtime.new_graph()
        with device.runtime.capture(graph, device.pool, device.compute):
            found = self._step_fn(kv, dict(statics))[1]
            for name, buffer in buffers.items():
                buffer.copy_(found[name])
        return _Captured(graph, statics, buffers, same, kv)

    def _give_up(self, error: Exception) -> None:
        failure = self._device.translate(error)
        if isinstance(failure, DeviceLost):
            raise failure from error
        self._eager = True
        self._captured.clear()
        cause = root_cause(error)
        self._device.run_eagerly(f"capture failed: {type(cause).__name__}: {first_line(cause)}")


def _key(kv: KV, inputs: Mapping[str, Tensor]) -> Hashable:
    """The key of a graph. A graph holds addresses, so the cache, the persistent tensors and the shapes must be the
    same."""
    parts = [(name, id(x) if name in PERSISTENT else (x.shape, x.dtype)) for name, x in inputs.items()]
    return (id(kv), *parts)
