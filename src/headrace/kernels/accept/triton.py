"""Triton form of `accept`."""

from __future__ import annotations

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.ngram.triton import known_length
from headrace.kernels.ops import Batch
from headrace.kernels.tritonlib.device import jit_varying, next_power
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["accept", "accept_kernel"]

_BLOCK = 256


@jit_varying("width", "rows")
def accept_kernel(
    sizes: tensor, query_start: tensor, slots: tensor, row_tokens: tensor, lengths: tensor, drafts: tensor,
    tokens: tensor, history: tensor, counts: tensor, width: int, rows: int, MOST: tl.constexpr, DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per sequence: int32 counts [seqs, 2]. Rows are in the order of their tokens, and every token of a
    placed sequence has one, so its first row is the number of rows before its first token."""
    seq = tl.program_id(0)
    own, _, text = known_length(sizes, slots, lengths, history, width, seq)
    begin = tl.load(query_start + seq)
    fresh = tl.load(query_start + seq + 1) - begin
    live = tl.where(own, tl.load(sizes + 2), 0)
    first = tl.zeros([], tl.int32)
    for start in range(0, live, BLOCK):
        row = start + tl.arange(0, BLOCK)
        first += tl.sum((tl.load(row_tokens + row, row < live, begin) < begin).to(tl.int32), 0)
    nth = tl.arange(0, DRAFTS)
    draft = tl.load(drafts + seq.to(tl.int64) * MOST + nth, nth < MOST, -1)
    made = tl.min(tl.where((draft >= 0) & (nth < tl.where(own, fresh - 1, 0)), DRAFTS, nth), 0)
    right = (nth < made) & (draft == tl.load(tokens + tl.minimum(first + nth, rows - 1)))
    count = tl.where(own, tl.min(tl.where(right, DRAFTS, nth), 0) + 1, 0)
    tl.store(counts + 2 * seq, count)
    tl.store(counts + 2 * seq + 1, made)
    # Its length may have been written by `place` alone, so it is read again.
    length = history + text + width - 1
    tl.store(length, tl.load(length, own, 0) + count, own)


def accept(
    batch: Batch,
    lengths: torch.Tensor,
    drafts: torch.Tensor,
    tokens: torch.Tensor,
    history: torch.Tensor,
    *,
    config: LaunchConfig,
) -> torch.Tensor:
    """See `ops.OptionalOps.accept`; `batch.sizes` must be in memory that the kernels can read."""
    if not len(lengths) or not len(tokens):
        return torch.zeros((len(lengths), 2), dtype=torch.int32, device=history.device)
    counts = torch.empty((len(lengths), 2), dtype=torch.int32, device=history.device)
    args = {
        "sizes": batch.sizes,
        "query_start": batch.query_start,
        "slots": batch.slots,
        "row_tokens": batch.rows,
        "lengths": lengths,
        "drafts": drafts,
        "tokens": tokens,
        "history": history,
        "counts": counts,
        "width": history.shape[1],
        "rows": len(tokens),
        "MOST": drafts.shape[1],
        "DRAFTS": next_power(drafts.shape[1] + 1),
        "BLOCK": _BLOCK,
    }
    config.launch(accept_kernel, (len(lengths),), args, 1, 1)
    return counts
