"""Reference of `resolve_tokens`."""

from __future__ import annotations

import torch

from headrace.kernels.ops import Batch

__all__ = ["resolve_tokens"]


def resolve_tokens(batch: Batch, history: torch.Tensor) -> torch.Tensor:
    """int32 [T]: token_ids with each negative id replaced by history[slot, position]; writes every id there, too."""
    tokens = int(batch.sizes[0])
    ids = batch.token_ids.clone()
    slots = batch.slots.long()[batch.token_seq[:tokens].long()]
    positions = batch.positions[:tokens].long()
    ids[:tokens] = torch.where(ids[:tokens] < 0, history[slots, positions], ids[:tokens])
    history[slots, positions] = ids[:tokens]
    ids[tokens:] = 0
    return ids
