"""`resolve_tokens` for compilers of whole steps: padding is computed and adds nothing."""

from __future__ import annotations

import torch

from headrace.kernels.ops import Batch
from headrace.types import NO_TOKEN

__all__ = ["resolve_tokens"]


def resolve_tokens(batch: Batch, history: torch.Tensor) -> torch.Tensor:
    """int32 [T]: token_ids with NO_TOKEN replaced by history[slot, position]; every id is written into the history.

    What is written is a difference that is added: padding adds 0 wherever it points, so it never competes with a token.
    """
    if not len(batch.slots):
        return torch.zeros_like(batch.token_ids)
    live = torch.arange(len(batch.token_ids), device=history.device) < batch.sizes[0].to(history.device)
    slots, positions = batch.slots.long()[batch.token_seq.long()], batch.positions.long()
    known = history[slots, positions]
    ids = torch.where(batch.token_ids == NO_TOKEN, known, batch.token_ids)
    history.index_put_((slots, positions), torch.where(live, ids - known, 0).to(history.dtype), accumulate=True)
    return torch.where(live, ids, 0).to(batch.token_ids.dtype)
