"""Triton form of `rotary_cache`: norm, rotation, quantization and the write to the cache in one pass.

One program per token and head.
"""

from __future__ import annotations

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch
from headrace.kernels.tritonlib.cache_tensors import stored, stored_scales
from headrace.kernels.tritonlib.device import encode_e4m3, jit, next_power, to_int8
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["rotary_cache", "rotary_kernel"]

Tensor = torch.Tensor


@jit
def _rotated(
    head: tensor, norm: tensor, cos_sin: tensor, eps: tensor, SIZE: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr
) -> tensor:
    """One head as float32 [PAD]: RMS norm if `norm` is given, then NeoX rotation of the first 2 HALF elements."""
    dim = tl.arange(0, PAD)
    other = tl.where(dim < HALF, dim + HALF, dim - HALF)  # the element that this one is rotated with
    turns = dim < 2 * HALF
    x = tl.load(head + dim, dim < SIZE, 0.0).to(tl.float32)
    y = tl.load(head + other, turns, 0.0).to(tl.float32)
    if norm is not None:
        root = tl.sqrt(tl.sum(x * x, 0) / SIZE + eps)
        x = x / root * tl.load(norm + dim, dim < SIZE, 0.0).to(tl.float32)
        y = y / root * tl.load(norm + other, turns, 0.0).to(tl.float32)
    at = tl.where(dim < HALF, dim, dim - HALF)
    cos, sin = tl.load(cos_sin + at, turns, 1.0), tl.load(cos_sin + HALF + at, turns, 0.0)
    return x * cos + tl.where(dim < HALF, -y, y) * sin


@jit
def _write(x: tensor, store: tensor, scales: tensor, row: tensor, SIZE: tl.constexpr, PAD: tl.constexpr) -> None:
    """Write one head to row `row` of the cache [rows, SIZE], and its scale to scales[row]."""
    dim = tl.arange(0, PAD)
    place = store + row * SIZE + dim
    if scales is None:
        tl.store(place, x.to(store.dtype.element_ty), dim < SIZE)
    else:
        E4M3: tl.constexpr = store.dtype.element_ty == tl.uint8
        scale = tl.div_rn(tl.max(tl.abs(x), 0), 448.0 if E4M3 else 127.0)
        tl.store(scales + row, scale)
        x = tl.div_rn(x, tl.zeros_like(x) + tl.where(scale > 0.0, scale, 1.0))
        if E4M3:
            tl.store(place, encode_e4m3(x), dim < SIZE)
        else:
            tl.store(place, to_int8(x, -127.0), dim < SIZE)


@jit
def rotary_kernel(
    qkv: tensor, q: tensor, keys: tensor, values: tensor, key_scales: tensor, value_scales: tensor, sizes: tensor,
    positions: tensor, slot_mapping: tensor, cos_sin: tensor, q_norm: tensor, k_norm: tensor, eps: float,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    PAD: tl.constexpr,
) -> None:  # fmt: skip
    """Rotate qkv [T, (Q_HEADS + 2 KV_HEADS) SIZE] into q and the caches. Tokens past the true count write nothing."""
    # Grid (tokens, heads: queries, then keys, then values). `qkv` holds the heads of a token one after the other, `q`
    # is [T, Q_HEADS, SIZE], the caches are [blocks, KV_HEADS, BLOCK, SIZE], their scales [blocks, KV_HEADS, BLOCK] or
    # None, `cos_sin` is [positions, 2 HALF]. A program holds one head in PAD lanes. It reads the head once, and then
    # for each lane the element it is rotated with, because lanes cannot exchange values. Norm, rotation, scale and
    # rounding are done in registers; only the result is written. `slot_mapping` gives a token's slot in the cache,
    # block * BLOCK + offset: keys and values are written there, query heads to `q`.
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if token < tl.load(sizes):
        dim = tl.arange(0, PAD)
        source = qkv + (token * (Q_HEADS + 2 * KV_HEADS) + head) * SIZE
        table = cos_sin + tl.load(positions + token).to(tl.int64) * (2 * HALF)
        if head < Q_HEADS:
            x = _rotated(source, q_norm, table, eps, SIZE, HALF, PAD)
            tl.store(q + (token * Q_HEADS + head) * SIZE + dim, x.to(q.dtype.element_ty), dim < SIZE)
        else:
            slot = tl.load(slot_mapping + token).to(tl.int64)
            own = (head - Q_HEADS) % KV_HEADS
            row = (slot // BLOCK * KV_HEADS + own) * BLOCK + slot % BLOCK
            if head < Q_HEADS + KV_HEADS:
                _write(_rotated(source, k_norm, table, eps, SIZE, HALF, PAD), keys, key_scales, row, SIZE, PAD)
            else:
                x = tl.load(source + dim, dim < SIZE, 0.0).to(tl.float32)
                _write(x, values, value_scales, row, SIZE, PAD)


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
    *,
    config: LaunchConfig,
) -> Tensor:
    """See `ops.Ops.rotary_cache`; rows past the true token count are undefined."""
    shape, qkv = kv.layout.layers[layer], qkv.contiguous()
    q = qkv.new_empty(len(qkv), num_q_heads * shape.head_dim)
    args = {
        "qkv": qkv,
        "q": q,
        "keys": stored(kv.keys, layer),
        "values": stored(kv.values, layer),
        "key_scales": stored_scales(kv.key_scales, layer),
        "value_scales": stored_scales(kv.value_scales, layer),
        "sizes": batch.sizes,
        "positions": batch.positions,
        "slot_mapping": batch.slot_mapping,
        "cos_sin": cos_sin,
        "q_norm": q_norm,
        "k_norm": k_norm,
        "eps": eps,
        "Q_HEADS": num_q_heads,
        "KV_HEADS": shape.num_kv_heads,
        "SIZE": shape.head_dim,
        "HALF": cos_sin.shape[1] // 2,
        "BLOCK": kv.layout.block_size,
        "PAD": next_power(shape.head_dim),
    }
    config.launch(rotary_kernel, (len(batch.positions), num_q_heads + 2 * shape.num_kv_heads), args, 1, 1)
    return q
