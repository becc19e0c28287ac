"""Weights that aren't quantized, stacks of weights, and row selection without dequantizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from headrace.kernels.weight import Weight

__all__ = ["dense", "place", "same_values", "stack", "take_rows"]

Tensor = torch.Tensor
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def dense(weight: Tensor, name: str = "") -> Weight:
    """The weight of a float32, bfloat16 or float16 [N, K] matrix, a view in its own type; scheme tensor `weight`."""
    return Weight(
        _DTYPES[weight.dtype], (weight.shape[0], weight.shape[1]), {"weight": weight}, _unpack_dense, name=name
    )


def _unpack_dense(weight: Weight) -> Tensor:
    return weight.tensors["weight"].float()


def stack(parts: Sequence[Weight], name: str = "") -> Weight:
    """Stack matrices of the same K by rows. Their biases move to the stack, with zeros for a part without bias.

    Each part keeps its own `activation`: inputs are quantized separately for each part.
    """
    rows = sum(part.shape[0] for part in parts)
    bias = None
    if any(part.bias is not None for part in parts):
        bias = torch.cat([torch.zeros(part.shape[0]) if part.bias is None else part.bias for part in parts])
    bare = tuple(replace(part, bias=None) for part in parts)
    return Weight("stack", (rows, parts[0].shape[1]), {}, Weight.dequantize, bias=bias, parts=bare, name=name)


def take_rows(weight: Weight, index: Tensor) -> Weight:
    """The rows `index` (int64) of a weight that is not a stack, in its stored form, with their bias."""
    bias = None if weight.bias is None else weight.bias[index]
    return replace(weight.take(index), bias=bias)


def place(weight: Weight, move: Callable[[Tensor], Tensor]) -> Weight:
    """The weight with every tensor moved, for instance to a device."""
    return replace(
        weight,
        tensors={key: move(value) for key, value in weight.tensors.items()},
        bias=None if weight.bias is None else move(weight.bias),
        parts=tuple(place(part, move) for part in weight.parts),
        prepared={},
    )


def same_values(one: Weight, other: Weight) -> bool:
    """Whether two weights that are not stacks have the same stored bits. Equal values in different forms give False."""
    if one.scheme != other.scheme or one.shape != other.shape or one.tensors.keys() != other.tensors.keys():
        return False
    return all(_same_bits(tensor, other.tensors[key]) for key, tensor in one.tensors.items())


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(
        one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)
    )
