"""Reference of `ngram`; compilers of complete steps use it too, so nothing here depends on a value."""

from __future__ import annotations

import torch

from headrace.kernels.ops import Batch
from headrace.types import NO_TOKEN

__all__ = ["LONGEST", "SHORTEST", "known_lengths", "ngram"]

SHORTEST, LONGEST = 2, 32
"""Matches of fewer tokens don't count, and longer ones are not told apart."""


def known_lengths(batch: Batch, lengths: torch.Tensor, history: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[S] each: whether the device places the sequence's rows, and the number of its known tokens (else undefined)."""
    live = torch.arange(len(lengths), device=history.device) < batch.sizes[1].to(history.device)
    kept = history[batch.slots.long(), -1].long()
    return live & (lengths >= -1), torch.where(lengths >= 0, lengths.long(), kept)


def ngram(batch: Batch, lengths: torch.Tensor, history: torch.Tensor, most: int) -> torch.Tensor:
    """int32 [S, most]: what followed the longest earlier match of the last tokens, of several the latest; NO_TOKEN
    without a match. A copy that reaches the end of the text goes on with its own beginning."""
    if not len(lengths):
        return torch.full((0, most), NO_TOKEN, dtype=torch.int32, device=history.device)
    drafted, known = known_lengths(batch, lengths, history)
    drafted &= batch.query_start[1:] - batch.query_start[:-1] > 1
    text = history[batch.slots.long(), :-1]
    last = (known.clamp(max=text.shape[1]) - 1).clamp(min=0)
    at = torch.arange(text.shape[1], device=history.device)
    matches = (at < last[:, None]) & drafted[:, None]
    length = torch.zeros_like(text, dtype=torch.int64)
    for back in range(min(LONGEST, text.shape[1])):
        wanted = text.gather(1, (last - back).clamp(min=0)[:, None])
        matches = matches & (at >= back) & (text.roll(back, 1) == wanted)
        length = length + matches
    best = (length * text.shape[1] + at).argmax(1)
    found = length.gather(1, best[:, None])[:, 0] >= SHORTEST
    period = (last - best).clamp(min=1)
    steps = torch.arange(most, device=history.device) % period[:, None]
    drafts = text.gather(1, (best[:, None] + 1 + steps).clamp(max=text.shape[1] - 1))
    return torch.where((found & drafted)[:, None], drafts, NO_TOKEN).to(torch.int32)
