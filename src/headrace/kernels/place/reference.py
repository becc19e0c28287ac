"""Reference of `place`; compilers of complete steps use it too, so nothing here depends on a value."""

from __future__ import annotations

import torch

from headrace.kernels.ngram.reference import known_lengths
from headrace.kernels.ops import Batch, Placed

__all__ = ["place"]


def place(
    batch: Batch, lengths: torch.Tensor, drafts: torch.Tensor, position: torch.Tensor, history: torch.Tensor, size: int
) -> Placed:
    """The rows of sequences with lengths -1 or more, from their last known token on, with their drafts as tokens. Their
    lengths go to the last column of the history. A sequence keeps what it is given if its history or its block table
    does not hold so many tokens, as behind a step that failed."""
    if not len(lengths) or not len(batch.token_ids):
        return Placed(batch.token_ids, batch.positions, batch.slot_mapping, batch.context_lens, position)
    own, known = known_lengths(batch, lengths, history)
    table, counts = batch.block_tables, (batch.query_start[1:] - batch.query_start[:-1]).long()
    most = min(history.shape[1] - 1, table.shape[1] * size)
    own &= (known >= 1) & (known - 1 + counts <= most)
    slots, column = batch.slots.long(), torch.full_like(known, history.shape[1] - 1)
    change = torch.where(own, known - history[slots, column], 0).to(history.dtype)
    history.index_put_((slots, column), change, accumulate=True)
    seq = batch.token_seq.long()
    live = torch.arange(len(seq), device=history.device) < batch.sizes[0].to(history.device)
    ours = own[seq] & live
    nth = torch.arange(len(seq), device=history.device) - batch.query_start.long()[seq]
    positions = torch.where(ours, known[seq] - 1 + nth, batch.positions.long())
    draft = drafts[seq, (nth - 1).clamp(0, drafts.shape[1] - 1)].clamp(min=0)
    block = table[seq, (positions // size).clamp(0, table.shape[1] - 1)].long()
    mapping = torch.where(ours, block * size + positions % size, batch.slot_mapping.long())
    context = torch.where(own, known - 1 + counts, batch.context_lens.long())
    rows = batch.rows.long()
    sampled = torch.where(ours[rows], positions[rows] + 1, position.long())
    return Placed(
        torch.where(ours & (nth > 0), draft, batch.token_ids).to(torch.int32),
        positions.to(torch.int32),
        mapping.to(torch.int32),
        context.to(torch.int32),
        sampled.to(torch.int32),
    )
