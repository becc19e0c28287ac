"""Reference of `accept`; compilers of complete steps use it too, so nothing here depends on a value."""

from __future__ import annotations

import torch

from headrace.kernels.ngram.reference import known_lengths
from headrace.kernels.ops import Batch

__all__ = ["accept"]


def accept(
    batch: Batch, lengths: torch.Tensor, drafts: torch.Tensor, tokens: torch.Tensor, history: torch.Tensor
) -> torch.Tensor:
    """int32 [S, 2]: the tokens of each placed sequence that count (the drafts that were sampled, and one more), and its
    drafts up to the first negative one; 0 for others. Adds the first to the length in the last column of the
    history."""
    if not len(lengths) or not len(tokens):
        return torch.zeros((len(lengths), 2), dtype=torch.int32, device=history.device)
    own, _ = known_lengths(batch, lengths, history)
    starts = batch.query_start.long()
    rows = torch.arange(len(batch.rows), device=history.device)
    live = rows < batch.sizes[2].to(history.device)
    # Every token of a placed sequence has a row.
    first = ((batch.rows.long() < starts[:-1, None]) & live).sum(1)
    nth = torch.arange(drafts.shape[1], device=history.device)
    held = own[:, None] & (drafts >= 0) & (nth < (starts[1:] - starts[:-1] - 1)[:, None])
    made = held.long().cumprod(1) > 0
    right = made & (drafts == tokens[(first[:, None] + nth).clamp(max=len(tokens) - 1)])
    count = torch.where(own, right.long().cumprod(1).sum(1) + 1, 0)
    slots, column = batch.slots.long(), torch.full_like(count, history.shape[1] - 1)
    history.index_put_((slots, column), count.to(history.dtype), accumulate=True)
    return torch.stack([count, made.sum(1)], 1).to(torch.int32)
