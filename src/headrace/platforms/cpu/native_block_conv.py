"""The native convolution over the rows of drafted blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch

from headrace.platforms.cpu.native_args import Dim
from headrace.platforms.cpu.native_linear import HasLauncher

__all__ = ["BlockConvArgs", "NativeBlockConv"]

Tensor = torch.Tensor


class BlockConvArgs(ctypes.Structure):
    """`block_conv_args` of `kernels/block_conv/cpu.cpp`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "kernel", "base", "y")),
        ("rows", Dim),
        *((name, ctypes.c_int32) for name in ("width", "groups", "taps", "side", "block")),
    )


class NativeBlockConv:
    """The operator `block_conv`."""

    def __init__(self, owner: HasLauncher) -> None:
        self._owner = owner

    def table(self) -> Mapping[str, Callable[..., Any]]:
        return {"block_conv": self.block_conv}

    def block_conv(self, x: Tensor, kernel: Tensor, base: Tensor, side: int, rows: int) -> Tensor:
        """See `ops.OptionalOps.block_conv`."""
        launcher, (taps, width) = self._owner.launcher, base.shape
        with launcher.own():
            given = [part.to(torch.float32).contiguous() for part in (x, kernel, base)]
            count = launcher.rows(x)
            y = launcher.empty(count, x.shape)
            groups = kernel.shape[1] // (2 * taps)
            packed = BlockConvArgs(*(t.data_ptr() for t in (*given, y)), count, width, groups, taps, side, rows)
            launcher.call("block_conv", packed, (*given, y))
            return y.to(x.dtype)
