"""Reference of `rotary_cache`."""

from __future__ import annotations

import torch

from headrace.kernels import paged
from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch
from headrace.kernels.rms_norm.reference import rms_norm

__all__ = ["rotary_cache", "rotate"]

Tensor = torch.Tensor


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
) -> Tensor:
    """q [T, Hq d] in qkv's dtype; keys and values are written to the cache from float32."""
    tokens, shape = int(batch.sizes[0]), kv.layout.layers[layer]
    heads = num_q_heads + 2 * shape.num_kv_heads
    x = qkv[:tokens].float().view(tokens, heads, shape.head_dim)
    q, k, v = x.tensor_split((num_q_heads, num_q_heads + shape.num_kv_heads), dim=1)
    table = cos_sin[batch.positions[:tokens].long()].unsqueeze(1)
    q = rotate(q if q_norm is None else rms_norm(q, q_norm, eps), table)
    k = rotate(k if k_norm is None else rms_norm(k, k_norm, eps), table)
    paged.write(kv, layer, batch.slot_mapping[:tokens], k, v)
    out = qkv.new_zeros(len(qkv), num_q_heads * shape.head_dim)
    out[:tokens] = q.flatten(1).to(qkv.dtype)
    return out


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate NeoX halves of x [T, H, d]; table float32 [T, 1, rotary_dim] = cos | sin; the rest of d is unchanged."""
    cos, sin = table.chunk(2, dim=-1)
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
