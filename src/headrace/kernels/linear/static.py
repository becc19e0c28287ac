"""`linear`, `logits` and `embedding` for compilers of whole steps: plain products of matrices that are made once at
load."""

from __future__ import annotations

import torch

from headrace.kernels.embedding.reference import of_part
from headrace.kernels.linear.activation import quantize_activation
from headrace.kernels.ops import Batch
from headrace.kernels.weight import Weight

__all__ = ["KEY", "embedding", "linear", "logits", "pack", "product"]

Tensor = torch.Tensor
KEY = "static:matrix"
"""Prefix of the key of the matrix in `Weight.prepared`."""


def pack(weight: Weight, dtype: torch.dtype | None) -> None:
    """Make each part's matrix in the type that products are computed in; None: as it is stored where that is wide, else
    bfloat16."""
    for part in weight.parts or (weight,):
        _matrix(part, dtype)


def linear(x: Tensor, weight: Weight, dtype: torch.dtype | None) -> Tensor:
    """[T, N] in x's dtype."""
    return product(x, weight, dtype).to(x.dtype)


def logits(x: Tensor, batch: Batch, head: Weight, soft_cap: float | None, dtype: torch.dtype | None) -> Tensor:
    """float32 [R, V]."""
    found = product(x[batch.rows.long()], head, dtype)
    return found if soft_cap is None else torch.tanh(found / soft_cap) * soft_cap


def embedding(
    ids: Tensor, table: Weight, scale: float, dtype: torch.dtype | None, first_row: int | None = None
) -> Tensor:
    """[T, D] in `dtype`; None: as the table is stored where that is 16 or 32 bits wide, else bfloat16."""
    if first_row is not None:
        return of_part(lambda own: embedding(own, table, scale, dtype), ids, first_row, table.shape[0])
    rows = table.dequantize()[ids.long()] if table.parts else table.take(ids.long()).dequantize()
    usual = {"float32": torch.float32, "float16": torch.float16}.get(table.scheme, torch.bfloat16)
    return (rows * scale).to(dtype or usual)


def product(x: Tensor, weight: Weight, dtype: torch.dtype | None) -> Tensor:
    """float32 [T, N]: operands in `dtype`, sums in float32, the bias added; each part with its own rounding of
    inputs."""
    parts = [_part(x, part, dtype) for part in weight.parts or (weight,)]
    out = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    if weight.bias is None or not weight.parts:
        return out
    return out + weight.bias


def _part(x: Tensor, weight: Weight, dtype: torch.dtype | None) -> Tensor:
    matrix = _matrix(weight, dtype)
    seen = quantize_activation(x, weight).to(matrix.dtype).float()
    # The compiler multiplies narrow operands in float32 without converting them in memory.
    out = seen @ matrix.float().t()
    return out if weight.bias is None else out + weight.bias


def _matrix(weight: Weight, dtype: torch.dtype | None) -> Tensor:
    found: Tensor | None = weight.prepared.get(f"{KEY}:{dtype}")
    if found is None:
        dense = weight.tensors.get("weight") if len(weight.tensors) == 1 else None
        wanted = dtype or (torch.bfloat16 if dense is None else dense.dtype)
        found = dense if dense is not None and dense.dtype == wanted else weight.dequantize().to(wanted)
        weight.prepared[f"{KEY}:{dtype}"] = found
    return found
