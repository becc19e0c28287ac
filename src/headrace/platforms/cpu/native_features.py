"""The native operators that only drafters call, which read the target's hidden states."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch

from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch
from headrace.platforms.cpu.native_args import Dim
from headrace.platforms.cpu.native_kv import KVArgs, NativeKV
from headrace.platforms.cpu.native_launch import Launcher
from headrace.platforms.cpu.native_linear import HasLauncher
from headrace.platforms.cpu.native_ops import batch_sizes

__all__ = ["BlockConvArgs", "FeatureArgs", "NativeFeatures", "TakeRowsArgs", "WidenLogitsArgs"]

Tensor = torch.Tensor


class FeatureArgs(ctypes.Structure):
    _fields_ = (("x", ctypes.c_void_p), ("kv", KVArgs), ("slots", ctypes.c_void_p), ("width", ctypes.c_int64))


class TakeRowsArgs(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_void_p) for name in ("x", "y", "rows")), ("width", ctypes.c_int64))


class WidenLogitsArgs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "y", "columns")), ("rows", Dim), ("narrow", ctypes.c_int32),
        ("wide", ctypes.c_int32),
    )  # fmt: skip


class BlockConvArgs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "kernel", "base", "y")),
        ("rows", Dim),
        *((name, ctypes.c_int32) for name in ("width", "groups", "taps", "side", "block")),
    )


class NativeFeatures:
    """Operators that keep, read and select features, see `ops.OptionalOps`."""

    def __init__(self, owner: HasLauncher, check: Callable[[], None]) -> None:
        """`check` is called once, before the first call: it raises if the library has other arguments."""
        self._owner = owner
        self._check: Callable[[], None] | None = check

    def table(self) -> Mapping[str, Callable[..., Any]]:
        names = ("store_features", "load_features", "take_rows", "widen_logits", "block_conv")
        return {name: getattr(self, name) for name in names}

    def _launcher(self) -> Launcher:
        if self._check is not None:
            self._check()
            self._check = None
        return self._owner.launcher

    def store_features(self, x: Tensor, batch: Batch, kv: Any, layer: int) -> Tensor:
        launcher = self._launcher()
        with launcher.own():
            native, wide = _native(kv), x.float().contiguous()
            args = FeatureArgs(wide.data_ptr(), native.args(layer), batch.slot_mapping.data_ptr(), x.shape[1])
            launcher.call("store_features", args, (wide, native, batch), batch_sizes(batch))
            if isinstance(kv, TorchKV):
                native.to_torch(kv)
        return x

    def load_features(self, batch: Batch, kv: Any, layer: int, width: int) -> Tensor:
        launcher = self._launcher()
        with launcher.own():
            native, slots = _native(kv), batch.slot_mapping
            x = launcher.empty(launcher.rows(slots), (slots.shape[0], width))
            args = FeatureArgs(x.data_ptr(), native.args(layer), slots.data_ptr(), width)
            launcher.call("load_features", args, (x, native, batch), batch_sizes(batch))
            return x

    def take_rows(self, x: Tensor, batch: Batch) -> Tensor:
        launcher = self._launcher()
        with launcher.own():
            wide, rows = x.float().contiguous(), batch.rows
            y = launcher.empty(launcher.rows(rows), (rows.shape[0], x.shape[1]))
            args = TakeRowsArgs(wide.data_ptr(), y.data_ptr(), rows.data_ptr(), x.shape[1])
            launcher.call("take_rows", args, (wide, y, batch), batch_sizes(batch))
            return y.to(x.dtype)

    def widen_logits(self, logits: Tensor, columns: Tensor) -> Tensor:
        launcher = self._launcher()
        with launcher.own():
            wide, rows = logits.float().contiguous(), launcher.rows(logits)
            y = launcher.empty(rows, (logits.shape[0], columns.shape[0]))
            pointers = [x.data_ptr() for x in (wide, y, columns)]
            args = WidenLogitsArgs(*pointers, rows, logits.shape[1], columns.shape[0])
            launcher.call("widen_logits", args, (wide, y, columns))
            return y

    def block_conv(self, x: Tensor, kernel: Tensor, base: Tensor, side: int, rows: int) -> Tensor:
        launcher, (taps, width) = self._launcher(), base.shape
        with launcher.own():
            given = [part.float().contiguous() for part in (x, kernel, base)]
            count = launcher.rows(x)
            y = launcher.empty(count, x.shape)
            groups = kernel.shape[1] // (2 * taps)
            args = BlockConvArgs(*(t.data_ptr() for t in (*given, y)), count, width, groups, taps, side, rows)
            launcher.call("block_conv", args, (*given, y))
            return y.to(x.dtype)


def _native(kv: Any) -> NativeKV:
    return kv if isinstance(kv, NativeKV) else NativeKV.from_torch(kv)
