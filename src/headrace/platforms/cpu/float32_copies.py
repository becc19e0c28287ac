"""Float32 copies of quantized weights, within a budget: exact arithmetic at the speed of a dense model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from headrace.kernels.spec import OpSpec
from headrace.kernels.weight import Weight

__all__ = ["Float32Copies"]

_KEY = "cpu:float32"
_WITH_WEIGHT = frozenset({"embedding", "linear", "logits"})


class Float32Copies:
    """Makes copies until `budget` bytes are used. Weights without a copy are dequantized at every call, with the same
    bits."""

    def __init__(self, budget: int) -> None:
        self._left = budget

    def operator(self, spec: OpSpec) -> Callable[..., Any] | None:
        """The reference on the copies, for operators that take a weight; None for others."""
        return _OnCopies(spec.reference, self.pack) if spec.name in _WITH_WEIGHT else None

    def pack(self, weight: Weight) -> None:
        """Store a copy if it fits. Float32 weights and weights that require quantized inputs get none."""
        size = 4 * weight.shape[0] * weight.shape[1]
        plain = weight.scheme == "float32" or any(part.activation for part in (weight, *weight.parts))
        if plain or _KEY in weight.prepared or size > self._left:
            return
        self._left -= size
        tensors = {"weight": weight.dequantize()}
        weight.prepared[_KEY] = Weight("float32", weight.shape, tensors, _unpack, weight.bias, name=weight.name)


def _unpack(weight: Weight) -> torch.Tensor:
    return weight.tensors["weight"]


@dataclass(frozen=True, slots=True)
class _OnCopies:
    reference: Callable[..., Any]
    pack: Callable[[Weight], None]
    tag: str = "reference on float32 copies"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.reference(*map(_copy, args), **{name: _copy(value) for name, value in kwargs.items()})


def _copy(argument: Any) -> Any:
    return argument.prepared.get(_KEY, argument) if isinstance(argument, Weight) else argument
