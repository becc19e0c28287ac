"""`rotary_cache` for compilers of complete steps.

The cache's tensors are replaced, not written: a compiler that gets the old tensors as donated buffers writes in place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch
from headrace.kernels.rms_norm.static import rms_norm
from headrace.kernels.rotary_cache.reference import rotate

__all__ = ["Store", "encode", "rotary_cache", "scatter"]

Tensor = torch.Tensor
Store = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(cache [N, Hk, block, d], slots [T], rows [T, Hk, d]) → the cache with the rows at slots block * block_size +
offset."""


def scatter(cache: Tensor, slots: Tensor, rows: Tensor) -> Tensor:
    """A `Store` in plain torch; also for scales, with [N, Hk, block] and [T, Hk]."""
    size, places = cache.shape[2], slots.long()
    index = [torch.div(places, size, rounding_mode="floor"), None, places % size]
    found: Tensor = torch.ops.aten.index_put(cache, index, rows)
    return found


def rotary_cache(
    qkv: Tensor,
    batch: Batch,
    kv: TorchKV,
    layer: int,
    cos_sin: Tensor,
    num_q_heads: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    store: Store = scatter,
) -> Tensor:
    """q [T, Hq d] in qkv's dtype; keys and values are written to the cache from float32, padding to block 0."""
    shape = kv.layout.layers[layer]
    x = qkv.float().view(len(qkv), num_q_heads + 2 * shape.num_kv_heads, shape.head_dim)
    q, k, v = x.tensor_split((num_q_heads, num_q_heads + shape.num_kv_heads), dim=1)
    table = cos_sin[batch.positions.long()].unsqueeze(1)
    q = rotate(q if q_norm is None else rms_norm(q, q_norm, eps), table)
    k = rotate(k if k_norm is None else rms_norm(k, k_norm, eps), table)
    if len(qkv):
        for caches, scales, rows in ((kv.keys, kv.key_scales, k), (kv.values, kv.value_scales, v)):
            codes, scale = encode(rows, caches[layer].dtype)
            caches[layer] = store(caches[layer], batch.slot_mapping, codes)
            if scale is not None:
                scales[layer] = scatter(scales[layer], batch.slot_mapping, scale)
    return q.flatten(1).to(qkv.dtype)


def encode(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """float32 [T, Hk, d] in the cache's type, and for int8 the float32 scales [T, Hk] (largest magnitude / 127)."""
    if dtype != torch.int8:
        return x.to(dtype), None
    scale = x.abs().amax(-1) / 127.0
    codes = x / torch.where(scale > 0, scale, 1.0).unsqueeze(-1)
    return codes.round().clamp(-127, 127).to(dtype), scale
