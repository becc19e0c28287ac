"""`store_features` for compilers of complete steps: the cache's tensors are replaced, not written."""

from __future__ import annotations

import torch

from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch
from headrace.kernels.rotary_cache.static import encode, scatter
from headrace.kernels.store_features.reference import halves

__all__ = ["store_features"]

Tensor = torch.Tensor


def store_features(x: Tensor, batch: Batch, kv: TorchKV, layer: int) -> Tensor:
    """Stores x [T, D] at slot_mapping, padding to block 0; returns x."""
    if len(x):
        keys, values = halves(x, kv, layer)
        for caches, scales, rows in ((kv.keys, kv.key_scales, keys), (kv.values, kv.value_scales, values)):
            codes, scale = encode(rows, caches[layer].dtype)
            held = caches[layer].shape[3]
            if held > codes.shape[2]:
                codes = torch.nn.functional.pad(codes, (0, held - codes.shape[2]))
            caches[layer] = scatter(caches[layer], batch.slot_mapping, codes)
            if scale is not None:
                scales[layer] = scatter(scales[layer], batch.slot_mapping, scale)
    return x
