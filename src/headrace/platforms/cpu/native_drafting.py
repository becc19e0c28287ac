"""The native operators with which the device drafts and verifies by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from headrace.kernels.ops import Batch, Placed, Shifted
from headrace.platforms.cpu import native_args as args
from headrace.platforms.cpu.native_launch import Launcher
from headrace.platforms.cpu.native_ops import NativeOps, batch_sizes

__all__ = ["NativeDrafting"]

Tensor = torch.Tensor


class NativeDrafting:
    """The operators of `registry.DRAFTING` and `HEAD_DRAFTING`, on the launcher of `ops`."""

    def __init__(self, ops: NativeOps, check: Callable[[], None]) -> None:
        """`check` is called once, before the first call: it raises if the library has other arguments."""
        self._ops = ops
        self._check: Callable[[], None] | None = check

    def table(self) -> Mapping[str, Callable[..., Any]]:
        names = ("ngram", "place", "accept", "read_drafts", "shift")
        return {name: getattr(self, name) for name in names}

    def _launcher(self) -> Launcher:
        if self._check is not None:
            self._check()
            self._check = None
        return self._ops.launcher

    def ngram(self, batch: Batch, lengths: Tensor, history: Tensor, most: int) -> Tensor:
        return self._drafts("ngram", batch, lengths, history, most)

    def read_drafts(self, batch: Batch, lengths: Tensor, history: Tensor, most: int) -> Tensor:
        return self._drafts("read_drafts", batch, lengths, history, most)

    def _drafts(self, kernel: str, batch: Batch, lengths: Tensor, history: Tensor, most: int) -> Tensor:
        launcher = self._launcher()
        with launcher.own():
            drafts = launcher.empty(launcher.rows(batch.slots), (len(batch.slots), most), torch.int32)
            given = (batch.query_start, batch.slots, lengths, history, drafts)
            packed = args.NgramArgs(*(x.data_ptr() for x in given), *history.shape, most)
            launcher.call(kernel, packed, (batch, *given), batch_sizes(batch))
            return drafts

    def shift(self, batch: Batch, bounds: Tensor, position: Tensor, history: Tensor, size: int) -> Shifted:
        launcher = self._launcher()
        with launcher.own():
            like = (batch.positions, batch.positions, batch.slot_mapping, batch.context_lens, position)
            shifted = Shifted(*(launcher.empty(launcher.rows(x), x.shape, torch.int32) for x in like))
            given = (
                batch.positions, batch.slot_mapping, batch.token_seq, batch.query_start, batch.context_lens,
                batch.block_tables, batch.slots, batch.rows, bounds, position, history,
            )  # fmt: skip
            packed = args.ShiftArgs(*(x.data_ptr() for x in (*given, *shifted)), *history.shape, size)
            launcher.call("shift", packed, (batch, *given, *shifted), batch_sizes(batch))
            return shifted

    def place(
        self, batch: Batch, lengths: Tensor, drafts: Tensor, position: Tensor, history: Tensor, size: int
    ) -> Placed:
        launcher = self._launcher()
        with launcher.own():
            like = (batch.token_ids, batch.positions, batch.slot_mapping, batch.context_lens, position)
            placed = Placed(*(launcher.empty(launcher.rows(x), x.shape, torch.int32) for x in like))
            given = (
                batch.token_ids, batch.positions, batch.slot_mapping, batch.token_seq, batch.query_start,
                batch.context_lens, batch.block_tables, batch.slots, batch.rows, lengths, drafts, position, history,
            )  # fmt: skip
            packed = args.PlaceArgs(*(x.data_ptr() for x in (*given, *placed)), *history.shape, drafts.shape[1], size)
            launcher.call("place", packed, (batch, *given, *placed), batch_sizes(batch))
            return placed

    def accept(self, batch: Batch, lengths: Tensor, drafts: Tensor, tokens: Tensor, history: Tensor) -> Tensor:
        launcher = self._launcher()
        with launcher.own():
            counts = launcher.empty(launcher.rows(batch.slots), (len(batch.slots), 2), torch.int32)
            given = (batch.query_start, batch.slots, batch.rows, lengths, drafts, tokens, history, counts)
            packed = args.AcceptArgs(*(x.data_ptr() for x in given), *history.shape, drafts.shape[1])
            launcher.call("accept", packed, (batch, *given), batch_sizes(batch))
            return counts
