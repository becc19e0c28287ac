"""Reference of `shift`; compilers of complete steps use it too, so nothing here depends on a value."""

from __future__ import annotations

import torch

from headrace.kernels.ops import Batch, Shifted

__all__ = ["shift"]


def shift(batch: Batch, bounds: torch.Tensor, position: torch.Tensor, history: torch.Tensor, size: int) -> Shifted:
    """The rows of sequences with bounds of 0 or more, lowered by the bound less the length in the last column of the
    history. A sequence keeps what it is given if that length is above the bound or leaves a position below 0, as behind
    a step that failed."""
    positions = batch.positions.long()
    if not len(bounds) or not len(positions):
        return Shifted(batch.positions, batch.positions + 1, batch.slot_mapping, batch.context_lens, position)
    device = history.device
    own = (bounds >= 0) & (torch.arange(len(bounds), device=device) < batch.sizes[1].to(device))
    back = bounds.long() - history[batch.slots.long(), -1].long()
    begin, end = batch.query_start[:-1].long(), batch.query_start[1:].long()
    first = positions[begin.clamp(max=len(positions) - 1)]
    own &= (back >= 0) & ((first >= back) | (begin == end))
    back = torch.where(own, back, 0)
    seq = batch.token_seq.long()
    ours = own[seq] & (torch.arange(len(seq), device=device) < batch.sizes[0].to(device))
    moved = torch.where(ours, positions - back[seq], positions)
    table = batch.block_tables
    block = table[seq, (moved // size).clamp(0, table.shape[1] - 1)].long()
    mapping = torch.where(ours, block * size + moved % size, batch.slot_mapping.long())
    rows = batch.rows.long()
    sampled = (ours[rows] & (torch.arange(len(rows), device=device) < batch.sizes[2].to(device))).long()
    found = (moved, moved + 1, mapping, batch.context_lens - back, position - sampled * back[seq[rows]])
    return Shifted(*(one.to(torch.int32) for one in found))
