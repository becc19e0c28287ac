"""Reference of `read_drafts`; compilers of complete steps use it too, so nothing here depends on a value."""

from __future__ import annotations

import torch

from headrace.kernels.ngram.reference import known_lengths
from headrace.kernels.ops import Batch
from headrace.types import NO_TOKEN

__all__ = ["read_drafts"]


def read_drafts(batch: Batch, lengths: torch.Tensor, history: torch.Tensor, most: int) -> torch.Tensor:
    """int32 [S, most]: the tokens behind the known ones, one fewer than the sequence has tokens in the step, up to the
    first negative one; NO_TOKEN for the rest."""
    if not len(lengths):
        return torch.full((0, most), NO_TOKEN, dtype=torch.int32, device=history.device)
    own, known = known_lengths(batch, lengths, history)
    fresh = (batch.query_start[1:] - batch.query_start[:-1]).long()
    nth, last = torch.arange(most, device=history.device), history.shape[1] - 2
    at = known[:, None] + nth
    found = history[batch.slots.long()[:, None], at.clamp(0, last)]
    held = (own & (known >= 0))[:, None] & (nth < (fresh - 1)[:, None]) & (at <= last)
    valid = (held & (found >= 0)).long().cumprod(1) > 0
    return torch.where(valid, found, NO_TOKEN).to(torch.int32)
