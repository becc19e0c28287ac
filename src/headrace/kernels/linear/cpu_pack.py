"""Packs a checkpoint's weight for the native kernels: done once, and stored with the weight.

`pack` chooses the arithmetic: `float32` multiplies dequantized weights exactly; `bfloat16` lets bfloat16 (and float32)
weights meet inputs rounded to bfloat16, and FP8 weights those or the FP8 inputs that their scheme asks for; `int8` also
lets integer weights meet inputs rounded to int8, by groups of 32 (16 where a scale covers 16 columns) or as the scheme
says, or split into two int8 (`Weight.wide_inputs`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import torch

from headrace.errors import PlatformError
from headrace.kernels.linear.cpu_pack_panels import (
    ARITH_BF16,
    ARITH_F8,
    ARITH_F32,
    ARITH_I8,
    ARITH_I8_PAIR,
    ARITH_I8_ROW,
    Layout,
    Take,
    lay_out,
    padded,
    plain_memory,
)
from headrace.kernels.linear.cpu_pack_schemes import Coded, Dense, read
from headrace.kernels.weight import Weight

__all__ = ["Compute", "InputArgs", "PackedArgs", "PackedPart", "PackedWeight", "PartArgs", "pack"]

Tensor = torch.Tensor
Compute = Literal["float32", "bfloat16", "int8"]
_INPUTS = {
    None: 0, "int8_token": 2, "int8_token_asymmetric": 3, "int8_tensor": 4, "fp8_token": 5, "fp8_tensor": 6,
    "fp8_group128": 7, "mxfp4": 8, "nvfp4": 9,
}  # fmt: skip
_ARITHMETIC = {
    ARITH_BF16: "bfloat16",
    ARITH_F8: "bfloat16",
    ARITH_I8: "int8",
    ARITH_I8_ROW: "int8",
    ARITH_I8_PAIR: "int8",
}
_DYNAMIC, _PAIR = 1, 10
_FP8_INPUTS = (None, "fp8_token", "fp8_tensor", "fp8_group128")
_LONGEST_ROW = 1 << 16
"""Columns whose int8 products always fit a 32-bit sum."""


class InputArgs(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32), ("arith", ctypes.c_int32), ("step", ctypes.c_int32), ("scale", ctypes.c_float),
        ("order", ctypes.c_void_p),
    )  # fmt: skip


class PartArgs(ctypes.Structure):
    _fields_ = (
        ("panels", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("panel_bytes", "scale_at", "super_at")),
        *((name, ctypes.c_int64) for name in ("min_at", "min_super_at", "row_sum_at")),
        *((name, ctypes.c_int32) for name in ("rows", "column", "code", "scale", "min", "arith", "group", "step")),
        *((name, ctypes.c_int32) for name in ("offset_bits", "input")),
        ("factor", ctypes.c_float),
        ("has_table", ctypes.c_int32),
        ("table", ctypes.c_uint8 * 16),
    )  # fmt: skip


class PackedArgs(ctypes.Structure):
    _fields_ = (
        ("parts", ctypes.c_void_p), ("inputs", ctypes.c_void_p), ("bias", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("num_parts", "num_inputs", "rows", "columns")),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PackedPart:
    """Rows of one format. `panels` is uint8 [P, panel_bytes]."""

    rows: int
    layout: Layout
    panels: Tensor
    activation: str | None
    input_scale: float = 0.0
    order: Tensor | None = None

    @property
    def input_key(self) -> tuple[Any, ...]:
        """The rounding of the inputs; parts with equal keys share prepared inputs."""
        kind = _INPUTS[self.activation]
        if self.layout.arith in (ARITH_I8, ARITH_I8_ROW) and kind == 0:
            kind = _DYNAMIC
        if self.layout.arith == ARITH_I8_PAIR:
            kind = _PAIR
        step = self.layout.step if self.layout.arith in (ARITH_I8, ARITH_I8_PAIR, ARITH_F8) else 0
        order = None if self.order is None else self.order.numpy().tobytes()
        return kind, self.layout.arith, step, self.input_scale, order


@dataclass(eq=False)
class PackedWeight:
    """An [N, K] matrix ready for the kernels. `address` is its `hr_packed`, valid as long as this object lives."""

    shape: tuple[int, int]
    compute: Compute
    parts: tuple[PackedPart, ...]
    bias: Tensor | None = None
    _alive: list[Any] = field(default_factory=list, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads: panels and bias."""
        return sum(part.panels.numel() for part in self.parts) + (0 if self.bias is None else 4 * self.bias.numel())

    @property
    def form(self) -> str:
        """A description for people: the codes of each part, and the columns that share a scale."""
        return "+".join(dict.fromkeys(part.layout.form for part in self.parts))

    @property
    def arithmetic(self) -> str:
        """The type of the products: `float32`, `bfloat16` or `int8`. If parts differ, that of the slowest."""
        kinds = {_ARITHMETIC.get(part.layout.arith, "float32") for part in self.parts}
        return next(kind for kind in ("float32", "bfloat16", "int8") if kind in kinds)

    @cached_property
    def halves(self) -> bool:
        """Whether panel i of the first half of the rows and panel i of the second half hold the same rows of each
        half."""
        rows, middle = [part.rows for part in self.parts], len(self.parts) // 2
        if len(rows) == 1:
            return rows[0] % 32 == 0
        return rows[:middle] == rows[middle:]

    @cached_property
    def address(self) -> int:
        keys = list(dict.fromkeys(part.input_key for part in self.parts))
        inputs = (InputArgs * len(keys))()
        for i, key in enumerate(keys):
            order = next(part.order for part in self.parts if part.input_key == key)
            inputs[i] = InputArgs(*key[:4], None if order is None else order.data_ptr())
        parts, column = (PartArgs * len(self.parts))(), 0
        for i, part in enumerate(self.parts):
            parts[i] = _part_args(part, column, keys.index(part.input_key))
            column += part.rows
        bias = None if self.bias is None else self.bias.data_ptr()
        packed = PackedArgs(
            ctypes.addressof(parts), ctypes.addressof(inputs), bias, len(parts), len(inputs), *self.shape
        )
        self._alive += [inputs, parts, packed]
        return ctypes.addressof(packed)

    def dump(self) -> tuple[dict[str, Any], list[Tensor]]:
        """A JSON header and flat buffers, for `load`."""
        buffers = [part.panels for part in self.parts]
        buffers += [part.order for part in self.parts if part.order is not None]
        parts = [
            {
                "rows": part.rows, "layout": part.layout.to_dict(), "activation": part.activation,
                "input_scale": part.input_scale, "ordered": part.order is not None,
            }
            for part in self.parts
        ]  # fmt: skip
        header = {"shape": self.shape, "compute": self.compute, "parts": parts, "bias": self.bias is not None}
        return header, buffers if self.bias is None else [*buffers, self.bias]

    @staticmethod
    def load(header: dict[str, Any], buffers: Sequence[Tensor]) -> PackedWeight:
        """The inverse of `dump`.

        Buffers are kept, not copied: uint8 panels, int32 orders, float32 bias, aligned to 64 bytes.
        """
        panels = iter(buffers)
        orders = iter(buffers[len(header["parts"]) :])
        parts = []
        for entry in header["parts"]:
            layout = dict(entry["layout"])
            layout["table"] = None if layout["table"] is None else tuple(layout["table"])
            memory = next(panels).view(-1, layout["panel_bytes"])
            order = next(orders) if entry["ordered"] else None
            parts.append(
                PackedPart(entry["rows"], Layout(**layout), memory, entry["activation"], entry["input_scale"], order)
            )
        rows, columns = header["shape"]
        return PackedWeight((rows, columns), header["compute"], tuple(parts), buffers[-1] if header["bias"] else None)


def pack(weight: Weight, compute: Compute, take: Take = plain_memory) -> PackedWeight:
    """Pack a weight; a stack is packed part by part.

    Raises PlatformError for an arithmetic or an input format that the kernels don't support.
    """
    if compute not in get_args(Compute):
        raise PlatformError(f"cpu: arithmetic {compute!r} is unknown: choose one of {', '.join(get_args(Compute))}")
    pieces = weight.parts or (weight,)
    parts = tuple(_pack_part(piece, compute, take) for piece in pieces)
    bias = weight.bias
    if weight.parts and any(piece.bias is not None for piece in pieces):
        own = torch.cat([torch.zeros(p.shape[0]) if p.bias is None else p.bias.float() for p in pieces])
        bias = own if bias is None else own + bias
    return PackedWeight(weight.shape, compute, parts, None if bias is None else bias.float().contiguous())


def _pack_part(weight: Weight, compute: Compute, take: Take) -> PackedPart:
    if weight.activation not in _INPUTS:
        known = ", ".join(str(name) for name in _INPUTS if name)
        raise PlatformError(f"cpu: {weight.name}: inputs in {weight.activation!r} are unknown: there are {known}")
    form = read(weight)
    arith, step = _arithmetic(weight, form, compute)
    if isinstance(form, Dense) and arith == ARITH_BF16:
        form = Dense(form.values.to(torch.bfloat16))
    layout, panels = lay_out(form, arith, step, take)
    scale = weight.tensors.get({"nvfp4": "input_global_scale"}.get(weight.activation or "", "input_scale"))
    order = form.order if isinstance(form, Coded) else None
    return PackedPart(
        weight.shape[0], layout, panels, weight.activation, 0.0 if scale is None else float(scale.reshape(-1)[0]), order
    )


def _arithmetic(weight: Weight, form: Coded | Dense, compute: Compute) -> tuple[int, int]:
    """(arithmetic, columns per step)."""
    if isinstance(form, Dense):
        return _dense_arithmetic(weight, form, compute)
    activation = weight.activation
    whole = form.scales.shape[1] == 1 and form.minimum is None and form.zeros is None and form.table is None
    step = 32 if form.scales.shape[1] == 1 or form.group % 32 == 0 else 16
    if activation == "nvfp4":
        step = 16
    if compute != "int8" or (activation or "").startswith("fp8") or (step == 16 and form.bits == 5):
        return ARITH_F32, step
    by_row = activation in ("int8_token", "int8_token_asymmetric", "int8_tensor")
    if by_row and whole and padded(weight.shape[1]) < _LONGEST_ROW:
        return ARITH_I8_ROW, step
    if activation is None and weight.wide_inputs:
        return ARITH_I8_PAIR, step
    return (ARITH_F32 if activation == "int8_token_asymmetric" else ARITH_I8), step


def _dense_arithmetic(weight: Weight, form: Dense, compute: Compute) -> tuple[int, int]:
    if form.scales is not None and compute != "float32" and weight.activation in _FP8_INPUTS:
        group = weight.shape[1] // form.scales.shape[1]
        blocks = form.scales.shape[1] > 1
        if not blocks or group % 128 == 0:
            return ARITH_F8, 128 if blocks or weight.activation == "fp8_group128" else 0
    narrow = {"bfloat16": compute != "float32", "float32": compute == "bfloat16"}
    plain = narrow.get(weight.scheme, False) and weight.activation is None
    return (ARITH_BF16 if plain else ARITH_F32), 32


def _part_args(part: PackedPart, column: int, index: int) -> PartArgs:
    layout = part.layout
    args = PartArgs(part.panels.data_ptr(), rows=part.rows, column=column, input=index)
    for name in ("panel_bytes", "scale_at", "super_at", "min_at", "min_super_at", "row_sum_at", "code", "scale", "min"):
        setattr(args, name, getattr(layout, name))
    for name in ("arith", "group", "step", "offset_bits", "factor"):
        setattr(args, name, getattr(layout, name))
    if layout.table is not None:
        args.has_table = 1
        args.table[:] = layout.table
    return args
