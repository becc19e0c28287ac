"""`resolve_tokens` for compilers of complete steps: padding is computed, but has no effect."""

from __future__ import annotations

import torch

from headrace.kernels.ops import Batch

__all__ = ["resolve_tokens"]


def resolve_tokens(batch: Batch, history: torch.Tensor) -> torch.Tensor:
    """int32 [T]: token_ids with each negative id replaced by history[slot, position]; writes every id there, too.

    The write adds a difference. Padding adds 0, so it never conflicts with a token that writes to the same element.
    """
    if not len(batch.slots):
        return torch.zeros_like(batch.token_ids)
    live = torch.arange(len(batch.token_ids), device=history.device) < batch.sizes[0].to(history.device)
    slots, positions = batch.slots.long()[batch.token_seq.long()], batch.positions.long()
    known = history[slots, positions]
    ids = torch.where(batch.token_ids < 0, known, batch.token_ids)
    history.index_put_((slots, positions), torch.where(live, ids - known, 0).to(history.dtype), accumulate=True)
    return torch.where(live, ids, 0).to(batch.token_ids.dtype)
