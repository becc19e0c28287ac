"""Reference of `widen_logits`."""

from __future__ import annotations

import torch

__all__ = ["widen_logits"]


def widen_logits(logits: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """float32 [R, V] of [R, N] and int32 columns [V]: token v gets column columns[v], -inf if that is negative."""
    taken = logits.float()[:, columns.long().clamp(min=0)]
    return torch.where(columns >= 0, taken, -torch.inf)
