"""Finds the origin of numbers that are not finite: computes the tokens again, operator by operator, in a separate
cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from headrace.engine.plans import single_sequence_plan
from headrace.kernels.inputs import batch_of, pad_arrays, plan_arrays
from headrace.kernels.weight import Weight
from headrace.platforms.interface import Device
from headrace.types import Bucket, KVLayout

__all__ = ["first_not_finite"]


class _Found(Exception):
    """Ends the forward pass."""


def first_not_finite(
    device: Device, model: Any, ops: Any, layout: KVLayout, vocab_size: int, tokens: Sequence[int]
) -> str | None:
    """The layer and the operator whose result is the first that is not finite; None if every result is.

    It computes the tokens as one sequence in a separate cache, and is slow: every result is checked on the host.
    Raises what the device raises.
    """
    probe = _Probe(device, ops, _names(model), len(tokens))
    probed = copy.copy(model)
    for name, value in vars(model).items():
        if value is ops:
            setattr(probed, name, probe)
    plan = replace(single_sequence_plan(len(tokens), 0, layout.block_size), token_ids=np.array(tokens, np.int32))
    arrays = plan_arrays(plan, vocab_size)
    if device.capabilities().static_shapes:
        arrays = pad_arrays(arrays, Bucket(len(tokens), 1, len(tokens), plan.block_tables.shape[1]), 1)
    inputs = {name: device.put(np.ascontiguousarray(array)) for name, array in arrays.items()}
    history = device.put(np.zeros((2, len(tokens) + 1), np.int32))
    kv = device.alloc_kv(layout, plan.block_tables.shape[1] + 1)
    try:
        probed.forward(batch_of(inputs), kv, history)
    except _Found as found:
        return str(found)
    return None


class _Probe:
    """The operators, with a check of every result."""

    def __init__(self, device: Device, ops: Any, names: Mapping[int, str], count: int) -> None:
        self._device, self._ops, self._names, self._count = device, ops, names, count
        self._layer = ""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operator = getattr(self._ops, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = operator(*args, **kwargs)
            named = [self._names[id(x)] for x in (*args, *kwargs.values()) if id(x) in self._names]
            weight = named[0] if named else ""
            if weight.startswith("layers."):
                self._layer = f"layer {weight.split('.')[1]}"
            # rows of padding are undefined; logits have a row for the last token alone
            count = 1 if name == "logits" else self._count
            for part in result if isinstance(result, tuple) else (result,):
                if not self._is_finite(part, count):
                    raise _Found(self._where(name, weight))
            return result

        return call

    def _is_finite(self, x: Any, count: int) -> bool:
        host = self._device.get(x).result()[:count]
        return bool(host.dtype.kind != "f" or np.isfinite(host).all())

    def _where(self, operator: str, weight: str) -> str:
        if weight and not weight.startswith("layers."):
            return f"{weight} ({operator})"
        part = weight.split(".", 2)[-1]
        return f"{self._layer or 'the first layer'} ({operator}{' with ' + part if part else ''})"


def _names(model: Any) -> dict[int, str]:
    """Identity of each weight → its name."""
    found: dict[int, str] = {}
    _walk(getattr(model, "weights", model), "", found)
    return found


def _walk(value: Any, path: str, found: dict[int, str]) -> None:
    below = f"{path}." if path else ""
    if isinstance(value, Weight) or hasattr(value, "dtype"):
        found.setdefault(id(value), path)
    elif is_dataclass(value):
        for field in fields(value):
            _walk(getattr(value, field.name), below + field.name, found)
    elif isinstance(value, (list, tuple)):
        for index, one in enumerate(value):
            _walk(one, f"{below}{index}", found)
