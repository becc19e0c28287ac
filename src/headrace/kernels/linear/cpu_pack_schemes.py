"""Converts every number format to one of two neutral forms: unsigned codes with scales, or plain floats."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from headrace.kernels.codebooks import FP4_VALUES, IQ4_VALUES
from headrace.kernels.weight import Weight

__all__ = ["Coded", "Dense", "read"]

Tensor = torch.Tensor
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Coded:
    """A matrix whose elements are (code - 2^offset_bits) * scale + addend, or table[code] in place of the difference.

    `scales` are float16, float32 or E8M0 bytes (uint8) [N, G]; or int8 [N, G], times `scale_super` float16 [N, S].
    `minimum` is the addend in the type of `scales`; for int8 scales int8, times `minimum_super`, and to be subtracted.
    `zeros` (uint8 or int8 [N, G]) in its place stand for an addend of -zero * scale.
    """

    codes: Tensor
    """uint8 [N, K]"""
    bits: int
    """4, 5, 6 or 8."""
    group: int
    """Columns per scale."""
    scales: Tensor
    offset_bits: int = -1
    """-1: no offset."""
    scale_super: Tensor | None = None
    minimum: Tensor | None = None
    minimum_super: Tensor | None = None
    zeros: Tensor | None = None
    table: tuple[int, ...] | None = None
    """The sixteen 8-bit codes that the 4-bit codes stand for, including the offset."""
    factor: float = 1.0
    """A factor of every scale."""
    order: Tensor | None = None
    """int32 [K]: column k of the codes is column order[k] of the matrix."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A matrix of floats: float32, bfloat16 or float16 [N, K], or E4M3 with float32 `scales` [N, G]."""

    values: Tensor
    scales: Tensor | None = None


def read(weight: Weight) -> Coded | Dense:
    """The neutral form of one part. If the kernels have no form of the scheme, it is float32, which is logged."""
    reader = _READERS.get(weight.scheme)
    form = None if reader is None else reader(weight)
    if form is None:
        _log.info("%s: %s has no packed form: float32 is used", weight.name or "a weight", weight.scheme)
        return Dense(weight.dequantize())
    return form


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at a byte offset of each block: uint8 [N, blocks, bytes] → float16 [N, blocks]."""
    return blocks[:, :, at : at + 2].contiguous().view(torch.float16).squeeze(-1)


def _nibbles(packed: Tensor) -> Tensor:
    """Split bytes [..., n] → [..., 2 n]: all low halves, then all high halves."""
    out = packed.new_empty((*packed.shape[:-1], 2 * packed.shape[-1]))
    torch.bitwise_and(packed, 15, out=out[..., : packed.shape[-1]])
    torch.bitwise_right_shift(packed, 4, out=out[..., packed.shape[-1] :])
    return out


def _bit_planes(packed: Tensor, count: int, step: int) -> Tensor:
    """Shift bytes [..., n] → [..., count, n]: plane i begins at bit i * step of each byte, without a mask."""
    shifts = torch.arange(0, count * step, step, dtype=torch.uint8)
    return packed.unsqueeze(-2) >> shifts.unsqueeze(-1)


def _simple(bits: int, offset_bits: int, minimum: bool) -> Callable[[Weight], Coded]:
    """Blocks of 32: a float16 scale, a float16 minimum, four bytes of fifth bits, halves of codes, each where there is
    one."""

    def reader(weight: Weight) -> Coded:
        rows, columns = weight.shape
        blocks = weight.tensors["blocks"].reshape(rows, columns // 32, -1)
        at = 4 if minimum else 2
        stored = blocks[:, :, at + (4 if bits == 5 else 0) :]
        codes = stored ^ 128 if bits == 8 else _nibbles(stored)
        if bits == 5:
            high = blocks[:, :, at : at + 4].unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)
            codes |= (high & 1).flatten(2) << 4
        low = _half(blocks, 2) if minimum else None
        return Coded(codes.reshape(rows, columns), bits, 32, _half(blocks, 0), offset_bits, minimum=low)

    return reader


def _unsigned(values: Tensor) -> Tensor:
    """int8 plus 128, as uint8."""
    return values.view(torch.uint8) ^ 128


def _iq4_nl(weight: Weight) -> Coded:
    coded = _simple(4, 7, False)(weight)
    return replace(coded, table=_IQ4_TABLE)


def _gguf_mxfp4(weight: Weight) -> Coded:
    rows, columns = weight.shape
    blocks = weight.tensors["blocks"].reshape(rows, columns // 32, 17)
    codes = _nibbles(blocks[:, :, 1:]).reshape(rows, columns)
    return Coded(codes, 4, 32, blocks[:, :, 0].contiguous(), 4, table=_FP4_TABLE, factor=0.5)


def _super_blocks(weight: Weight) -> Tensor:
    """uint8 [N, blocks, bytes]"""
    rows, columns = weight.shape
    return weight.tensors["blocks"].reshape(rows, columns // 256, -1)


def _run_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """(eight scales, eight minima), of 6 bits each, from twelve bytes."""
    first, second, rest = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = torch.cat([first & 63, (rest & 15) | ((first >> 6) << 4)], dim=-1)
    return scales, torch.cat([second & 63, (rest >> 4) | ((second >> 6) << 4)], dim=-1)


def _q45_k(bits: int) -> Callable[[Weight], Coded]:
    def reader(weight: Weight) -> Coded:
        blocks = _super_blocks(weight)
        count = blocks.shape[:2]
        scales, minima = _run_scales(blocks[:, :, 4:16])
        codes = _nibbles(blocks[:, :, 16 + (32 if bits == 5 else 0) :].reshape(*count, 4, 32)).reshape(*count, 8, 32)
        if bits == 5:
            codes |= (_bit_planes(blocks[:, :, 16:48], 8, 1) & 1) << 4
        return _k_form(weight, codes, bits, 32, scales, _half(blocks, 0), minima, _half(blocks, 2))

    return reader


def _k_form(
    weight: Weight,
    codes: Tensor,
    bits: int,
    group: int,
    scales: Tensor,
    scale_super: Tensor,
    minima: Tensor | None = None,
    minimum_super: Tensor | None = None,
    offset_bits: int = -1,
    table: tuple[int, ...] | None = None,
) -> Coded:
    rows = weight.shape[0]
    small = scales.reshape(rows, -1).contiguous().view(torch.int8)
    low = None if minima is None else minima.reshape(rows, -1).contiguous().view(torch.int8)
    return Coded(
        codes.reshape(weight.shape), bits, group, small, offset_bits, scale_super, low, minimum_super, table=table
    )


def _two_bits(packed: Tensor) -> Tensor:
    """[..., 64] → [..., 8, 32]"""
    return (_bit_planes(_split(packed, 2, 32), 4, 2) & 3).flatten(-3, -2)


def _q2_k(weight: Weight) -> Coded:
    blocks = _super_blocks(weight)
    small = blocks[:, :, :16]
    codes = _two_bits(blocks[:, :, 16:80])
    return _k_form(weight, codes, 4, 16, small & 15, _half(blocks, 80), small >> 4, _half(blocks, 82))


def _q3_k(weight: Weight) -> Coded:
    blocks = _super_blocks(weight)
    codes = _two_bits(blocks[:, :, 32:96]) | ((_bit_planes(blocks[:, :, :32], 8, 1) & 1) << 2)
    packed = blocks[:, :, 96:108]
    low = _nibbles(packed[:, :, :8])
    high = (_bit_planes(packed[:, :, 8:], 4, 2) & 3).flatten(-2)
    scales = (low | (high << 4)) - 32  # wraps, as int8 bits do
    return _k_form(weight, codes, 4, 16, scales, _half(blocks, 108), offset_bits=2)


def _q6_k(weight: Weight) -> Coded:
    blocks = _super_blocks(weight)
    low = _nibbles(_split(blocks[:, :, :128], 2, 64))
    low = _split(low, 2, 2, 32).flatten(2, 4)
    codes = low.reshape(*low.shape[:2], 8, 32) | (_two_bits(blocks[:, :, 128:192]) << 4)
    return _k_form(weight, codes, 6, 16, blocks[:, :, 192:208], _half(blocks, 208), offset_bits=5)


def _iq4_xs(weight: Weight) -> Coded:
    blocks = _super_blocks(weight)
    low = torch.stack([blocks[:, :, 4:8] & 15, blocks[:, :, 4:8] >> 4], dim=-1).flatten(-2)
    high = (blocks[:, :, 2:4].unsqueeze(-1) >> torch.arange(0, 8, 2, dtype=torch.uint8)) & 3
    scales = (low | (high.flatten(-2) << 4)) - 32
    codes = _nibbles(_split(blocks[:, :, 8:], 8, 16))
    return _k_form(weight, codes, 4, 32, scales, _half(blocks, 0), offset_bits=7, table=_IQ4_TABLE)


def _columns_in_order(weight: Weight, groups: int) -> Tensor | bool | None:
    """None where groups are runs; the order that makes them so; False where they cannot be or are too odd for a
    step."""
    columns = weight.shape[1]
    if columns % groups or (groups > 1 and columns // groups % 16):
        return False
    index = weight.tensors.get("group_index")
    if index is None:
        return None
    if bool((torch.bincount(index.long(), minlength=groups) != columns // groups).any()):
        return False
    return torch.argsort(index.long(), stable=True).int()


def _short(scales: Tensor) -> Tensor:
    """The scales as float16 if that is exact."""
    half = scales.half()
    return half if torch.equal(half.float(), scales) else scales


def _int(weight: Weight) -> Coded | None:
    codes, scales, zeros = (weight.tensors.get(name) for name in ("codes", "scales", "zeros"))
    assert codes is not None
    assert scales is not None
    groups = scales.shape[1]
    order = _columns_in_order(weight, groups)
    if isinstance(order, bool):
        return None
    four = weight.scheme == "int4"
    codes = _pairs(codes)[:, : weight.shape[1]] if four else _unsigned(codes)
    if order is not None:
        codes = codes[:, order.long()]
    offset = 7 if not four else 3 if zeros is None else -1
    group = weight.shape[1] // groups
    return Coded(codes, 4 if four else 8, group, _short(scales), offset, zeros=zeros, order=order)


def _fp8(weight: Weight) -> Dense | None:
    scales = weight.tensors["scales"]
    if "group_index" in weight.tensors or weight.shape[1] % scales.shape[1]:
        return None
    return Dense(weight.tensors["codes"], scales)


def _pairs(packed: Tensor) -> Tensor:
    """Split bytes [N, n] → [N, 2 n]: each byte's low half, then its high half."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)


def _mxfp4(weight: Weight) -> Coded:
    return Coded(
        _pairs(weight.tensors["codes"]), 4, 32, weight.tensors["scales"].contiguous(), 4, table=_FP4_TABLE, factor=0.5
    )


def _nvfp4(weight: Weight) -> Coded:
    scales = weight.tensors["scales"].float() / weight.tensors["global_scale"]
    return Coded(_pairs(weight.tensors["codes"]), 4, 16, scales, 4, table=_FP4_TABLE, factor=0.5)


def _dense(weight: Weight) -> Dense:
    return Dense(weight.tensors["weight"])


_IQ4_TABLE = tuple(128 + value for value in IQ4_VALUES)
_FP4_TABLE = tuple(16 + int(2 * value) for value in FP4_VALUES)
_READERS: Mapping[str, Callable[[Weight], Coded | Dense | None]] = MappingProxyType(
    {
        "float32": _dense,
        "bfloat16": _dense,
        "float16": _dense,
        "gguf:q4_0": _simple(4, 3, False),
        "gguf:q4_1": _simple(4, -1, True),
        "gguf:q5_0": _simple(5, 4, False),
        "gguf:q5_1": _simple(5, -1, True),
        "gguf:q8_0": _simple(8, 7, False),
        "gguf:iq4_nl": _iq4_nl,
        "gguf:mxfp4": _gguf_mxfp4,
        "gguf:q2_k": _q2_k,
        "gguf:q3_k": _q3_k,
        "gguf:q4_k": _q45_k(4),
        "gguf:q5_k": _q45_k(5),
        "gguf:q6_k": _q6_k,
        "gguf:iq4_xs": _iq4_xs,
        "int4": _int,
        "int8": _int,
        "fp8_e4m3": _fp8,
        "mxfp4": _mxfp4,
        "nvfp4": _nvfp4,
    }
)


def _split(x: Tensor, *sizes: int) -> Tensor:
    """Split the last dimension into several."""
    return x.reshape(*x.shape[:-1], *sizes)
