"""A step captured once a bucket and replayed: one launch instead of one an operator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from headrace.errors import DeviceLost, HeadraceError
from headrace.kernels.step_inputs import PERSISTENT
from headrace.platforms.accelerator.async_copies import AsyncCopies
from headrace.platforms.accelerator.faults import first_line, root_cause
from headrace.platforms.accelerator.torch_runtime import TorchRuntime
from headrace.platforms.interface import KV, StepFn, Tensor

__all__ = ["Capturing", "GraphStep"]

_MAX_CAPTURED = 8
"""Captured forms of one step. The engine gives each its bucket's shapes, and so needs one; none makes way for another, so that
no step is captured at every call."""


class Capturing(Protocol):
    """What a step needs of its device."""

    runtime: TorchRuntime
    compute: Any
    copies: AsyncCopies
    pool: Any

    def translate(self, error: Exception) -> HeadraceError: ...

    def run_eagerly(self, reason: str) -> None:
        """Say once why steps are not captured."""


@dataclass(slots=True)
class _Captured:
    graph: Any
    statics: dict[str, Tensor]
    outputs: dict[str, Tensor]
    """Buffers outside the graphs' pool, so that no other graph's temporaries lie over them."""
    same: dict[str, str]
    """Outputs that are a persistent input."""
    kv: KV
    last: dict[str, Tensor] = field(default_factory=dict)

    def replay(self, inputs: Mapping[str, Tensor], copies: AsyncCopies) -> dict[str, Tensor]:
        copies.settle()
        changed: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        for name, tensor in inputs.items():
            # A tensor that was put is never written again: the same one needs no second copy.
            if name not in PERSISTENT and self.last.get(name) is not tensor:
                targets, sources = changed[tensor.dtype]
                targets.append(self.statics[name])
                sources.append(tensor)
        for targets, sources in changed.values():
            torch._foreach_copy_(targets, sources)
        self.last = dict(inputs)
        self.graph.replay()
        return self.outputs | {name: inputs[source] for name, source in self.same.items()}


class GraphStep:
    """Runs the step once a call, whatever the way: the first call of a shape is eager, which warms up what is compiled or
    bound on first use, and is recorded right after; later ones replay. A step that cannot be captured stays eager."""

    def __init__(self, device: Capturing, step_fn: StepFn) -> None:
        self._device = device
        self._step_fn = step_fn
        self._captured: dict[Hashable, _Captured] = {}
        self._eager = False

    def __call__(self, kv: KV, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if self._eager:
            return self._step_fn(kv, inputs)[1]
        key = _key(kv, inputs)
        captured = self._captured.get(key)
        if captured is not None:
            return captured.replay(inputs, self._device.copies)
        outputs = self._step_fn(kv, inputs)[1]
        if len(self._captured) >= _MAX_CAPTURED:
            self._device.run_eagerly(f"a step that has been captured for {_MAX_CAPTURED} shapes is not for others")
            return outputs
        try:
            self._captured[key] = self._capture(kv, inputs, outputs)
        except Exception as error:
            self._give_up(error)
        return outputs

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
    """A graph holds addresses: the same cache, the same persistent tensors, the same shapes."""
    parts = [(name, id(x) if name in PERSISTENT else (x.shape, x.dtype)) for name, x in inputs.items()]
    return (id(kv), *parts)
