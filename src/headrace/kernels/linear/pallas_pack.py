"""Packs a checkpoint's weight for `linear.pallas.product`, once at load. Plain torch; loads no JAX."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from headrace.kernels.weight import Weight

__all__ = ["KEY", "PallasPacked", "packed"]

Tensor = torch.Tensor
KEY = "pallas:packed"
"""The key of a part's packed form in `Weight.prepared`."""
_UNIT = 128


@dataclass(frozen=True, slots=True)
class PallasPacked:
    """`codes` int8 [N, K] or [N, K / 2], `scales` and `zeros` float32 [K / 128, N], K padded to a multiple of 256."""

    bits: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor
    order: Tensor | None
    """int64 [K]: column k of the codes is column order[k] of the matrix."""


def packed(weight: Weight) -> PallasPacked | None:
    """The packed weight; None for a scheme, a group size or an order of columns that the kernel doesn't support."""
    if KEY not in weight.prepared:
        weight.prepared[KEY] = _pack(weight) if weight.scheme in ("int4", "int8") else None
    found: PallasPacked | None = weight.prepared[KEY]
    return found


def _pack(weight: Weight) -> PallasPacked | None:
    columns, scales = weight.shape[1], weight.tensors["scales"]
    groups = scales.shape[1]
    if groups > 1 and (columns % groups or columns // groups % _UNIT):
        return None
    order = _order(weight, groups)
    if isinstance(order, bool):
        return None
    bits = 4 if weight.scheme == "int4" else 8
    codes = weight.tensors["codes"]
    if bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], -1).flatten(1)[:, :columns]
    codes = codes if order is None else codes[:, order]
    codes = functional.pad(codes, (0, -columns % (2 * _UNIT)))
    zeros = weight.tensors.get("zeros")
    middle = torch.full_like(scales, 8.0 if bits == 4 else 0.0) if zeros is None else zeros
    units = codes.shape[1] // _UNIT
    scales, middle = (_by_unit(x.float(), columns, units) for x in (scales, middle))
    if bits == 4:
        low, high = codes.view(len(codes), -1, 2, _UNIT).unbind(2)
        codes = (low | (high << 4)).flatten(1).view(torch.int8)
    return PallasPacked(bits, codes.contiguous(), scales, middle, order)


def _by_unit(x: Tensor, columns: int, units: int) -> Tensor:
    """Values per group [N, G] as values per unit [units, N]; zeros for the padding after the last group."""
    own = -(-columns // _UNIT)
    wide = x.repeat_interleave(own // x.shape[1], 1)
    return functional.pad(wide, (0, units - own)).t().contiguous()


def _order(weight: Weight, groups: int) -> Tensor | bool | None:
    """None if groups are equal runs; otherwise the column order that makes them so; False if there is none."""
    index = weight.tensors.get("group_index")
    if index is None:
        return None
    host = index.cpu().long()
    if bool((torch.bincount(host, minlength=groups) != weight.shape[1] // groups).any()):
        return False
    return torch.argsort(host, stable=True).to(index.device)
