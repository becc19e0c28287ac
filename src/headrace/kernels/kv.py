"""The paged KV cache of every torch device: one pair of tensors a layer, blocks of one head contiguous."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from headrace.types import KVLayout

__all__ = ["TorchKV"]


@dataclass(eq=False, slots=True)
class TorchKV:
    """Keys and values by layer: [num_blocks, num_kv_heads, block_size, head_dim] in the layout's dtype.

    For int8 and float8_e4m3 the scales hold one float32 a token and head, [num_blocks, num_kv_heads, block_size]; the stored
    value times its scale is the real one. They are empty lists otherwise. Block ids are the core's; block 0 is never handed out, so padding may point there.
    """

    layout: KVLayout
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    key_scales: list[torch.Tensor] = field(default_factory=list)
    value_scales: list[torch.Tensor] = field(default_factory=list)
