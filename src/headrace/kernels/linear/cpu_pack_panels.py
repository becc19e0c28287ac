"""Lays out the neutral forms in panels of 16 rows for the kernels (`kernels/linear/cpu.h` defines the layouts)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from headrace.kernels.linear.cpu_pack_schemes import Coded, Dense

__all__ = [
    "ARITH_BF16",
    "ARITH_F8",
    "ARITH_F32",
    "ARITH_I8",
    "ARITH_I8_PAIR",
    "ARITH_I8_ROW",
    "LAYOUT_VERSION",
    "Layout",
    "Take",
    "lay_out",
    "padded",
    "plain_memory",
]

Tensor = torch.Tensor
Take = Callable[[int], Tensor]
"""Allocates memory for packed weights: uint8 [size], aligned to 64 bytes, zeroed."""
LAYOUT_VERSION = 1
"""Raise it with every change of what packed bytes or the numbers of `Layout` mean to the kernels: packed weights are
kept on disk from one start to the next, and those of another version are packed again."""
ARITH_F32, ARITH_BF16, ARITH_I8, ARITH_I8_ROW, ARITH_F8, ARITH_I8_PAIR = range(6)
_CODE = {4: 0, 5: 1, 6: 2, 8: 3}
_FLOAT_CODE = {torch.float8_e4m3fn: 4, torch.float16: 5, torch.bfloat16: 6, torch.float32: 7}
_NAMES = ("4 bit", "5 bit", "6 bit", "8 bit", "e4m3", "float16", "bfloat16", "float32")
_SCALE = {torch.float16: 1, torch.float32: 2, torch.uint8: 3, torch.int8: 4}
_MIN = {torch.float16: 1, torch.float32: 2, torch.int8: 3}
_ZERO = {torch.uint8: 4, torch.int8: 5}


@dataclass(frozen=True, slots=True)
class Layout:
    """The numbers of `hr_part` that describe a panel."""

    panel_bytes: int
    scale_at: int = 0
    super_at: int = 0
    min_at: int = 0
    min_super_at: int = 0
    row_sum_at: int = 0
    code: int = 0
    scale: int = 0
    min: int = 0
    arith: int = 0
    group: int = 0
    step: int = 32
    offset_bits: int = -1
    factor: float = 1.0
    table: tuple[int, ...] | None = None

    @property
    def form(self) -> str:
        name = _NAMES[self.code] if self.table is None else f"{_NAMES[self.code]} table"
        return f"{name}/{self.group}" if self.group else name

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def plain_memory(size: int) -> Tensor:
    """A `Take` that allocates torch memory."""
    return torch.zeros(size, dtype=torch.uint8)


def padded(columns: int) -> int:
    return -(-columns // 32) * 32


def lay_out(form: Coded | Dense, arith: int, step: int, take: Take) -> tuple[Layout, Tensor]:
    """The layout and its panels, uint8 [P, panel_bytes]."""
    regions = _coded_regions(form, arith) if isinstance(form, Coded) else _dense_regions(form)
    offsets, total = {}, 0
    for name, region in regions.items():
        offsets[name] = total
        total += -(-region.shape[1] * region.shape[2] * region.element_size() // 64) * 64
    panels = len(regions["codes"])
    memory = take(panels * total).view(panels, total)
    for name, region in regions.items():
        size = region.shape[1] * region.shape[2] * region.element_size()
        target = memory[:, offsets[name] : offsets[name] + size].view(region.dtype)
        target.view(panels, region.shape[1], region.shape[2]).copy_(region)
    del offsets["codes"]
    return _layout(form, arith, step, total, offsets), memory


def _layout(form: Coded | Dense, arith: int, step: int, size: int, at: dict[str, Any]) -> Layout:
    if isinstance(form, Dense):
        scaled = form.scales is not None
        group = _dense_group(form)
        return Layout(
            size,
            **at,
            code=_FLOAT_CODE[form.values.dtype],
            scale=2 if scaled else 0,
            arith=arith,
            group=group,
            step=step,
        )
    minimum = 0
    if form.minimum is not None:
        minimum = _MIN[form.minimum.dtype]
    elif form.zeros is not None:
        minimum = _ZERO[form.zeros.dtype]
    return Layout(
        size,
        **at,
        code=_CODE[form.bits],
        scale=_SCALE[form.scales.dtype],
        min=minimum,
        arith=arith,
        group=_group(form),
        step=step,
        offset_bits=form.offset_bits,
        factor=form.factor,
        table=form.table,
    )


def _group(form: Coded) -> int:
    return padded(form.codes.shape[1]) if form.scales.shape[1] == 1 else form.group


def _dense_group(form: Dense) -> int:
    columns = form.values.shape[1]
    if form.scales is None or form.scales.shape[1] == 1:
        return max(padded(columns), 32)
    return columns // form.scales.shape[1]


def _pad(x: Tensor, columns: int, fill: int = 0) -> Tensor:
    """Pad [N, K] to [N rounded up to a multiple of 16, columns]."""
    rows = -(-x.shape[0] // 16) * 16
    if tuple(x.shape) == (rows, columns) and x.is_contiguous():
        return x
    out = torch.full((rows, columns), fill, dtype=torch.uint8) if fill else torch.zeros((rows, columns), dtype=x.dtype)
    out[: x.shape[0], : x.shape[1]] = x
    return out


def _by_panel(x: Tensor) -> Tensor:
    """View [16 P, n] as [P, n, 16]."""
    return x.view(-1, 16, x.shape[1]).transpose(1, 2)


def _dense_regions(form: Dense) -> dict[str, Tensor]:
    values, columns = form.values, padded(form.values.shape[1])
    if values.dtype == torch.bfloat16:
        return {"codes": _by_panel(_pad(values, columns).view(torch.int32))}
    if values.dtype == torch.float8_e4m3fn:
        regions = {"codes": _by_panel(_pad(values.view(torch.uint8), columns).view(torch.int16))}
        if form.scales is not None:
            regions["scale_at"] = _by_panel(_pad(form.scales, form.scales.shape[1]))
        return regions
    return {"codes": _by_panel(_pad(values, columns))}


def _coded_regions(form: Coded, arith: int) -> dict[str, Tensor]:
    columns = padded(form.codes.shape[1])
    groups = -(-columns // _group(form))
    fill = 0 if form.offset_bits < 0 or form.table else 1 << form.offset_bits
    codes = _pad(form.codes, columns, fill)
    regions = {"codes": _codes(codes, form.bits), "scale_at": _by_panel(_pad(form.scales, groups))}
    if form.scale_super is not None:
        regions["super_at"] = _by_panel(_pad(form.scale_super, form.scale_super.shape[1]))
    low = form.minimum if form.minimum is not None else form.zeros
    if low is not None:
        regions["min_at"] = _by_panel(_pad(low, groups))
    if form.minimum_super is not None:
        regions["min_super_at"] = _by_panel(_pad(form.minimum_super, form.minimum_super.shape[1]))
    if arith == ARITH_I8_ROW:
        sums = codes.sum(1, dtype=torch.int32) - (columns << form.offset_bits if form.offset_bits >= 0 else 0)
        regions["row_sum_at"] = _by_panel(sums.view(-1, 1).contiguous())
    return regions


def _codes(codes: Tensor, bits: int) -> Tensor:
    """Pack codes uint8 [16 P, K] into int32 words [P, ., 16]."""
    if bits == 8:
        return _by_panel(codes.view(torch.int32))
    if bits == 4:
        return _by_panel(_two_to_a_byte(codes))
    low, high = _two_to_a_byte(codes & 15), (codes >> 4).view(torch.int32)
    count = 8 if bits == 5 else 4
    top = _gather_bits(high.view(len(codes), -1, count), 8 // count)
    low = low.view(len(codes), -1, count // 2)
    return _by_panel(torch.cat([low, top.unsqueeze(-1)], dim=-1).flatten(1))


def _two_to_a_byte(codes: Tensor) -> Tensor:
    words = codes.view(torch.int32).view(len(codes), -1, 2)
    return words[..., 0] | (words[..., 1] << 4)


def _gather_bits(words: Tensor, step: int) -> Tensor:
    """Combine words [..., n] to [...]: word i is shifted left by i * step bits."""
    out = words[..., 0].clone()
    for i in range(1, words.shape[-1]):
        out |= words[..., i] << (i * step)
    return out
