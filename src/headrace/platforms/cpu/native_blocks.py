"""The native operators that move whole blocks of the cache."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch

from headrace.kernels.gather_blocks.reference import gather_blocks
from headrace.kernels.kv import TorchKV
from headrace.kernels.scatter_blocks.reference import scatter_blocks
from headrace.platforms.cpu.native_kv import NativeKV
from headrace.platforms.cpu.native_launch import Launcher
from headrace.platforms.cpu.native_linear import HasLauncher

__all__ = ["MovedBlocksArgs", "NativeBlocks"]

Tensor = torch.Tensor


class MovedBlocksArgs(ctypes.Structure):
    """hr_moved_blocks_args"""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("cache", "packed", "ids")),
        *((name, ctypes.c_int64) for name in ("stride", "bytes", "blocks", "count")),
    )


class NativeBlocks:
    """`gather_blocks` and `scatter_blocks`: one copy per block, with the bytes as `NativeKV` holds them. A plain cache
    is moved by the reference."""

    def __init__(self, owner: HasLauncher, check: Callable[[], None]) -> None:
        """`check` is called once, before the first call: it raises if the library has other arguments."""
        self._owner = owner
        self._check: Callable[[], None] | None = check

    def table(self) -> Mapping[str, Callable[..., Any]]:
        return {"gather_blocks": self.gather_blocks, "scatter_blocks": self.scatter_blocks}

    def gather_blocks(self, kv: Any, ids: Tensor) -> Tensor:
        if isinstance(kv, TorchKV):
            return gather_blocks(kv, ids)
        launcher = self._launcher()
        with launcher.own():
            packed = launcher.empty(launcher.rows(ids), (ids.shape[0], kv.block_bytes), torch.uint8)
            launcher.call("gather_blocks", _args(kv, ids, packed), (packed, ids, kv))
            return packed

    def scatter_blocks(self, kv: Any, ids: Tensor, packed: Tensor) -> Tensor:
        if isinstance(kv, TorchKV):
            return scatter_blocks(kv, ids, packed)
        launcher = self._launcher()
        with launcher.own():
            launcher.call("scatter_blocks", _args(kv, ids, packed), (packed, ids, kv))
            return ids

    def _launcher(self) -> Launcher:
        if self._check is not None:
            self._check()
            self._check = None
        return self._owner.launcher


def _args(kv: NativeKV, ids: Tensor, packed: Tensor) -> MovedBlocksArgs:
    pointers = (kv.keys[0].data_ptr(), packed.data_ptr(), ids.data_ptr())
    return MovedBlocksArgs(*pointers, kv.stride, kv.block_bytes, kv.num_blocks, ids.shape[0])
