"""A step for the XLA compiler: state tensors, which it replaces, and input tensors, which it only reads."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.kernels.kv import TorchKV
from headrace.kernels.step_inputs import PERSISTENT
from headrace.platforms.interface import KV, StepFn, Tensor
from headrace.platforms.tpu.xla_runtime import XlaGraph, XlaRuntime

__all__ = ["StepDevice", "XlaStep", "cache_of", "tensors_of"]


class StepDevice(Protocol):
    """The members of a device that a step uses."""

    runtime: XlaRuntime

    def submit(self, work: Any, lasting: bool = False) -> Any: ...


@dataclass(slots=True)
class _Compiled:
    graph: XlaGraph
    names: tuple[str, ...]
    """Names of the outputs, which follow the state."""


class XlaStep:
    """An `interface.Executable`: compiled at the first call of each shape, run by its hash from then on."""

    def __init__(self, device: StepDevice, step_fn: StepFn) -> None:
        self._device = device
        self._step_fn = step_fn
        self._compiled: dict[Hashable, _Compiled] = {}

    def __call__(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        """Run the step. It donates the cache and the persistent inputs: the caller must not use those that the step
        writes."""
        found: tuple[KV, Mapping[str, Tensor]] = self._device.submit(lambda: self._run(kv, dict(inputs))).result()
        return found

    def _run(self, kv: KV, inputs: dict[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        cache = tensors_of(kv)
        kept, names = _parted(inputs)
        state, given = [*cache, *(inputs[name] for name in kept)], [inputs[name] for name in names]
        key = (
            tuple(names), tuple(kept), None if cache else id(kv), getattr(kv, "layout", None),
            tuple((x.shape, x.dtype) for x in (*state, *given)),
        )  # fmt: skip
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile(kv, kept, names, state, given)
        found = self._device.runtime.run(compiled.graph, [*state, *given])
        outputs = dict(zip(compiled.names, found[len(state) :], strict=True))
        outputs |= {name: found[len(cache) + at] for at, name in enumerate(kept) if name in outputs}
        return cache_of(kv, found[: len(cache)]), outputs

    def _compile(
        self, kv: KV, kept: list[str], names: list[str], state: list[Tensor], given: list[Tensor]
    ) -> _Compiled:
        learnt: list[str] = []
        width = len(tensors_of(kv))

        def function(state: list[Tensor], given: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            traced = cache_of(kv, state[:width])
            inputs = dict(zip(names, given, strict=True))
            inputs |= dict(zip(kept, state[width:], strict=True))
            traced, outputs = self._step_fn(traced, inputs)
            learnt[:] = list(outputs)
            return [*tensors_of(traced), *state[width:]], list(outputs.values())

        graph = self._device.runtime.capture(function, state, given)
        return _Compiled(graph, tuple(learnt))


def _parted(inputs: Mapping[str, Tensor]) -> tuple[list[str], list[str]]:
    """(names of persistent inputs, names of the others)"""
    kept = [name for name in inputs if name in PERSISTENT]
    return kept, [name for name in inputs if name not in PERSISTENT]


def tensors_of(kv: KV) -> list[Tensor]:
    """The tensors of a cache; none if a caller without a cache passes another object."""
    return [*kv.keys, *kv.values, *kv.key_scales, *kv.value_scales] if isinstance(kv, TorchKV) else []


def cache_of(kv: KV, tensors: list[Tensor]) -> KV:
    """A cache of the same layout with these tensors."""
    if not isinstance(kv, TorchKV):
        return kv
    lists, start = [], 0
    for part in (kv.keys, kv.values, kv.key_scales, kv.value_scales):
        lists.append(list(tensors[start : start + len(part)]))
        start += len(part)
    return TorchKV(kv.layout, *lists)
