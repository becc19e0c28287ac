"""Reference of `load_features`."""

from __future__ import annotations

import torch

from headrace.kernels import paged
from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch

__all__ = ["load_features"]

Tensor = torch.Tensor


def load_features(batch: Batch, kv: TorchKV, layer: int, width: int) -> Tensor:
    """float32 [T, width]: the entries at slot_mapping, keys before values."""
    slots, size = batch.slot_mapping.long(), kv.layout.block_size
    block, offset = torch.div(slots, size, rounding_mode="floor"), slots % size
    stores = ((kv.keys, kv.key_scales), (kv.values, kv.value_scales))
    dim = kv.layout.layers[layer].head_dim
    parts = [paged.gather(store, scales, layer, block, offset)[..., :dim].flatten(1) for store, scales in stores]
    return torch.cat(parts, 1)[:, :width]
