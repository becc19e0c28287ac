"""Reference of `store_features`."""

from __future__ import annotations

import torch
from torch.nn import functional

from headrace.kernels import paged
from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch

__all__ = ["halves", "store_features"]

Tensor = torch.Tensor


def store_features(x: Tensor, batch: Batch, kv: TorchKV, layer: int) -> Tensor:
    """Stores x [T, D] at slot_mapping, in the cache's type; returns x."""
    if len(x):
        paged.write(kv, layer, batch.slot_mapping, *halves(x, kv, layer))
    return x


def halves(x: Tensor, kv: TorchKV, layer: int) -> tuple[Tensor, Tensor]:
    """The float32 parts of x that a layer stores as keys and as values, [T, Hk, d] each; zeros fill what is left."""
    shape = kv.layout.layers[layer]
    half = shape.num_kv_heads * shape.head_dim
    wide = functional.pad(x.float(), (0, 2 * half - x.shape[1])).view(len(x), 2 * shape.num_kv_heads, shape.head_dim)
    return wide[:, : shape.num_kv_heads], wide[:, shape.num_kv_heads :]
