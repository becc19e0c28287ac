"""The part of a block drafter's checkpoint that chooses tokens, as arrays of the host."""

from __future__ import annotations

import numpy as np
import torch

from headrace.models.block_draft_config import BlockDraftConfig
from headrace.models.block_draft_weights import BlockTables
from headrace.speculation.block_choice import BlockHead

__all__ = ["block_head"]


def block_head(config: BlockDraftConfig, tables: BlockTables) -> BlockHead:
    """The tables are views of the checkpoint's tensors where their type allows it."""
    floats = {
        name: None if tensor is None else np.ascontiguousarray(tensor.numpy())
        for name in ("predecessors", "successors", "markov_in", "markov_out", "mixing", "mixing_bias", "confidence")
        if isinstance(tensor := getattr(tables, name), torch.Tensor | None)
    }
    return BlockHead(
        draft_ids=None if tables.draft_ids is None else tables.draft_ids.numpy(),
        markov="" if config.markov is None else config.markov.kind,
        confidence_bias=tables.confidence_bias,
        estimates=any(name == "confidence" for name, _ in tables.side),
        **floats,
    )
