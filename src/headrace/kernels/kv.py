"""The paged KV cache of every torch device: two tensors per layer; a block's entries of one head are contiguous."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from headrace.types import KVLayout

__all__ = ["TorchKV"]


@dataclass(eq=False, slots=True)
class TorchKV:
    """Keys and values by layer: [num_blocks, num_kv_heads, block_size, head_dim] in the layout's dtype.

    For int8 and float8_e4m3, the scales hold one float32 per token and head, [num_blocks, num_kv_heads, block_size]: a
    value is its code times its scale. For other types they are empty lists. Block ids are those of the core. Block 0 is
    never allocated, so that padding may refer to it.
    """

    layout: KVLayout
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    key_scales: list[torch.Tensor] = field(default_factory=list)
    value_scales: list[torch.Tensor] = field(default_factory=list)
