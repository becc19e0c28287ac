"""The native operators that take a weight matrix: linear, logits and embedding, on packed weights."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from headrace.kernels.linear.cpu_pack import Compute, PackedWeight, pack
from headrace.kernels.ops import Batch
from headrace.kernels.weight import Weight
from headrace.platforms.cpu.native_args import ACTIVATIONS, Dim
from headrace.platforms.cpu.native_launch import Launcher
from headrace.platforms.cpu.native_ops import NativeOps
from headrace.platforms.cpu.weight_arena import WeightArena

__all__ = ["KEY", "EmbeddingArgs", "GatedLinearArgs", "LinearArgs", "LogitsArgs", "NativeLinear"]

Tensor = torch.Tensor
KEY = "cpu:packed:{}"
"""The key of the packed form for an arithmetic in `Weight.prepared`."""
_RAW = {"float32": 0, "bfloat16": 1, "float16": 2}


class LinearArgs(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p), ("y", ctypes.c_void_p), ("weight", ctypes.c_void_p), ("m", Dim),
        ("ldx", ctypes.c_int32), ("ldy", ctypes.c_int32),
    )  # fmt: skip


class LogitsArgs(ctypes.Structure):
    _fields_ = (("linear", LinearArgs), ("rows", ctypes.c_void_p), ("soft_cap", ctypes.c_float))


class GatedLinearArgs(ctypes.Structure):
    _fields_ = (("linear", LinearArgs), ("kind", ctypes.c_int32))


class EmbeddingArgs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ids", "y", "table", "raw")),
        *((name, ctypes.c_int32) for name in ("raw_type", "columns", "rows")),
        ("scale", ctypes.c_float), ("m", Dim),
    )  # fmt: skip


class HasLauncher(Protocol):
    """An object whose launcher is replaced while a tape is recorded."""

    launcher: Launcher


class NativeLinear:
    """Operators on weights that are packed at their first use or by `pack`, for one arithmetic.

    A weight that is both embedding table and head is packed once: the embedding reads rows from the panels of the head.
    A plain float table that is not the head is read without packing.
    """

    def __init__(self, owner: HasLauncher, compute: Compute) -> None:
        self._owner = owner
        self._compute: Compute = compute
        self._key = KEY.format(compute)
        self._arena = WeightArena()

    def table(self) -> Mapping[str, Callable[..., Any]]:
        return {
            "linear": self.linear,
            "gated_linear": self.gated_linear,
            "logits": self.logits,
            "embedding": self.embedding,
        }

    def pack(self, weight: Weight) -> None:
        """Pack a weight for `linear` and `logits`."""
        self.packed(weight)

    def pack_table(self, weight: Weight) -> None:
        """Pack a table for `embedding`. Plain floats are read as they are, unless the head packs them."""
        if weight.scheme not in _RAW:
            self.packed(weight)

    def packed(self, weight: Weight) -> PackedWeight:
        found: PackedWeight | None = weight.prepared.get(self._key)
        if found is None:
            found = weight.prepared[self._key] = pack(weight, self._compute, self._arena.take)
        return found

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        launcher = self._owner.launcher
        with launcher.own():
            wide, packed, rows = _plain(x), self.packed(weight), launcher.rows(x)
            y = launcher.empty(rows, (x.shape[0], weight.shape[0]))
            args = _linear_args(wide, y, packed, rows)
            launcher.call("linear", args, (wide, y, packed))
            return y.to(x.dtype)

    def gated_linear(self, x: Tensor, weight: Weight, kind: str) -> Tensor:
        """See `ops.OptionalOps.gated_linear`. It takes two kernels if the halves of the weight share a panel."""
        launcher = self._owner.launcher
        with launcher.own():
            packed = self.packed(weight)
        if kind not in ACTIVATIONS or not packed.halves:
            return NativeOps(launcher).gated_activation(self.linear(x, weight), kind)
        with launcher.own():
            wide, rows = _plain(x), launcher.rows(x)
            y = launcher.empty(rows, (x.shape[0], weight.shape[0] // 2))
            args = GatedLinearArgs(_linear_args(wide, y, packed, rows), ACTIVATIONS[kind])
            launcher.call("gated_linear", args, (wide, y, packed))
            return y.to(x.dtype)

    def logits(self, x: Tensor, batch: Batch, head: Weight, soft_cap: float | None) -> Tensor:
        launcher = self._owner.launcher
        with launcher.own():
            wide, packed, rows = _plain(x), self.packed(head), launcher.rows(batch.rows)
            y = launcher.empty(rows, (batch.rows.shape[0], head.shape[0]))
            args = LogitsArgs(_linear_args(wide, y, packed, rows), batch.rows.data_ptr(), soft_cap or 0.0)
            launcher.call("logits", args, (wide, y, packed, batch), batch.sizes.tolist()[:3])
            return y

    def embedding(self, ids: Tensor, table: Weight, scale: float) -> Tensor:
        launcher = self._owner.launcher
        with launcher.own():
            rows = launcher.rows(ids)
            y = launcher.empty(rows, (ids.shape[0], table.shape[1]))
            keep: Any = table
            address, raw, kind = None, None, 0
            if table.scheme in _RAW and self._key not in table.prepared:
                stored = table.tensors["weight"].contiguous()
                keep, raw, kind = stored, stored.data_ptr(), _RAW[table.scheme]
            else:
                keep = self.packed(table)
                address = keep.address
            args = EmbeddingArgs(
                ids.data_ptr(), y.data_ptr(), address, raw, kind, table.shape[1], table.shape[0], scale, rows
            )
            launcher.call("embedding", args, (ids, y, keep))
            return y


def _plain(x: Tensor) -> Tensor:
    """`x` as float32 and contiguous."""
    return x.to(torch.float32).contiguous()


def _linear_args(x: Tensor, y: Tensor, packed: PackedWeight, rows: Dim) -> LinearArgs:
    return LinearArgs(x.data_ptr(), y.data_ptr(), packed.address, rows, x.shape[1], y.shape[1])
