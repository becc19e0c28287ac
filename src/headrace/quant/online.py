"""Quantizes float weights on load: round to nearest, symmetric."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch

from headrace.errors import UnsupportedModel
from headrace.kernels.weight import Weight
from headrace.quant.bits import pack_nibbles
from headrace.quant.containers import int4_weight, int8_weight
from headrace.quant.quantized_size import INT4_GROUP, quantized_bytes

__all__ = ["FLOAT_SCHEMES", "FloatMatrix", "bytes_saved", "check_quantizable", "quantize_weight"]

FLOAT_SCHEMES = frozenset({"float32", "bfloat16", "float16"})
_PIECE = 1 << 20
"""Values quantized at a time: they and their results stay in the processor's cache."""


def quantize_weight(weight: Weight, kind: str) -> Weight:
    """The weight as `int8` (one scale per row, codes -127 to 127) or `int4` (one scale per 32 columns, codes 1 to 15).

    Stacks are quantized part by part. Raises UnsupportedModel for a weight that is already quantized, and for `int4` if
    the number of columns is not a multiple of 32.
    """
    if weight.parts:
        return replace(weight, parts=tuple(quantize_weight(part, kind) for part in weight.parts))
    rows, columns = weight.shape
    check_quantizable(weight.name, weight.scheme, columns, kind)
    narrow = _int8 if kind == "int8" else _int4
    step = max(1, _PIECE // columns)
    pieces = [narrow(weight.take(slice(at, at + step)).dequantize()) for at in range(0, rows, step)]
    codes, scales = (torch.cat(tensors) for tensors in zip(*pieces, strict=True))
    if kind == "int8":
        quantized = int8_weight(codes, scales, None, None, weight.name)
    else:
        quantized = int4_weight(codes, columns, scales, None, None, weight.name)
    return replace(quantized, bias=weight.bias, wide_inputs=False)


class FloatMatrix(NamedTuple):
    """A matrix that is not quantized, by the header of its file."""

    name: str
    rows: int
    columns: int
    size: int
    """Bytes of a value."""


def bytes_saved(matrices: Iterable[FloatMatrix], kind: str) -> int:
    """By how many bytes what `quantize_weight` makes of matrices is smaller than they are."""
    saved = 0
    for _, rows, columns, size in matrices:
        saved += rows * columns * size - quantized_bytes(rows, columns, kind)
    return saved


def check_quantizable(name: str, scheme: str, columns: int, kind: str) -> None:
    """Raises UnsupportedModel as `quantize_weight` does, for a weight of which only this is known."""
    if scheme not in FLOAT_SCHEMES:
        raise UnsupportedModel(
            f"{name or 'a weight'} is stored as {scheme}: leave --quantize out, or, if it is a drafter's, "
            "--draft-quantization"
        )
    if kind == "int4" and columns % INT4_GROUP:
        raise UnsupportedModel(
            f"{name} has rows of {columns} values, not a multiple of {INT4_GROUP}: choose --quantize int8, "
            "or, if it is a drafter's, --draft-quantization int8"
        )


def _int8(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scales), one scale per row."""
    scales = matrix.abs().amax(1, keepdim=True) / 127
    return (matrix / _nonzero(scales)).round().to(torch.int8), scales


def _int4(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = matrix.shape
    groups = matrix.view(rows, columns // INT4_GROUP, INT4_GROUP)
    scales = groups.abs().amax(-1) / 7
    codes = (groups / _nonzero(scales).unsqueeze(-1)).round() + 8
    return pack_nibbles(codes.to(torch.uint8).view(rows, columns)), scales


def _nonzero(scales: torch.Tensor) -> torch.Tensor:
    return torch.where(scales > 0, scales, 1.0)
