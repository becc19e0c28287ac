"""The embedding of a table that is split over ranks: the plain operator between two kernels that select this rank's
ids."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from headrace.kernels.weight import Weight
from headrace.platforms.cpu.native_args import Dim
from headrace.platforms.cpu.native_linear import HasLauncher
from headrace.platforms.interface import Tensor

__all__ = ["OwnArgs", "split_table"]


class OwnArgs(ctypes.Structure):
    _fields_ = (
        ("ids", ctypes.c_void_p), ("own", ctypes.c_void_p), ("y", ctypes.c_void_p), ("width", ctypes.c_int64),
        ("rows", Dim), ("first", ctypes.c_int32), ("count", ctypes.c_int32),
    )  # fmt: skip


def split_table(owner: HasLauncher, embedding: Callable[..., Tensor]) -> Callable[..., Any]:
    """The operator `embedding`, also for a table that holds the rows from `first_row` on: ids of other ranks give
    zeros."""

    def embed(ids: Tensor, table: Weight, scale: float, first_row: int | None = None) -> Tensor:
        if first_row is None:
            return embedding(ids, table, scale)
        launcher, part = owner.launcher, (first_row, table.shape[0])
        with launcher.own():
            rows = launcher.rows(ids)
            own = launcher.empty(rows, ids.shape, torch.int32)
            args = OwnArgs(ids.data_ptr(), own.data_ptr(), None, 0, rows, *part)
            launcher.call("own_ids", args, (ids, own))
            y = embedding(own, table, scale)
            args = OwnArgs(ids.data_ptr(), None, y.data_ptr(), table.shape[1], rows, *part)
            launcher.call("own_rows", args, (ids, y))
            return y

    return embed
