"""The two operators that know the cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.kernels.ops import Batch

__all__ = ["attention", "rotary_cache"]

Array = npt.NDArray[Any]


def rotary_cache(
    qkv: Array,
    batch: Batch,
    kv: Any,
    layer: int,
    cos_sin: Array,
    num_q_heads: int,
    q_norm: Array | None,
    k_norm: Array | None,
    eps: float,
) -> Array:
    tokens, shape = int(batch.sizes[0]), kv.layout.layers[layer]
    x = qkv[:tokens].reshape(tokens, num_q_heads + 2 * shape.num_kv_heads, shape.head_dim)
    q, k, v = np.split(x, [num_q_heads, num_q_heads + shape.num_kv_heads], axis=1)
    table = cos_sin[batch.positions[:tokens]][:, None]
    q, k = (_rotate(_norm(part, norm, eps), table) for part, norm in ((q, q_norm), (k, k_norm)))
    block, offset = np.divmod(batch.slot_mapping[:tokens], kv.layout.block_size)
    for store, part in zip(kv.stores[layer], (k, v), strict=True):
        store[block, offset] = part
    out = np.zeros((len(qkv), num_q_heads * shape.head_dim), np.float32)
    out[:tokens] = q.reshape(tokens, num_q_heads * shape.head_dim)
    return out


def _norm(x: Array, weight: Array | None, eps: float) -> Array:
    if weight is None:
        return x
    return x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps)) * weight


def _rotate(x: Array, table: Array) -> Array:
    """NeoX halves; what lies past the table's width is kept."""
    cos, sin = np.split(table, 2, axis=-1)
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]], axis=-1)


def attention(
    q: Array,
    batch: Batch,
    kv: Any,
    layer: int,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Array | None,
    alibi: Array | None,
) -> Array:
    """A sequence at a time: its keys out of its blocks, all scores at once, one softmax."""
    shape, size = kv.layout.layers[layer], kv.layout.block_size
    heads = q.shape[1] // shape.head_dim
    out = np.zeros(q.shape, np.float32)
    for seq in range(int(batch.sizes[1])):
        rows = slice(int(batch.query_start[seq]), int(batch.query_start[seq + 1]))
        count, length = rows.stop - rows.start, int(batch.context_lens[seq])
        if not count:
            continue
        blocks = batch.block_tables[seq, : -(-length // size)]
        keys, values = (
            store[blocks].reshape(-1, *store.shape[2:])[:length].astype(np.float32) for store in kv.stores[layer]
        )
        group = heads // shape.num_kv_heads
        query = q[rows].reshape(count, shape.num_kv_heads, group, shape.head_dim)
        score = np.einsum("tkgd,skd->kgts", query, keys, optimize=True) * np.float32(scale)
        if soft_cap is not None:
            score = soft_cap * np.tanh(score / np.float32(soft_cap))
        distance = np.arange(length) - batch.positions[rows][:, None]
        if alibi is not None:
            score = score + alibi.reshape(shape.num_kv_heads, group, 1, 1) * distance
        unseen = distance > 0 if window is None else (distance > 0) | (distance <= -window)
        score = np.where(unseen, -np.inf, score)
        sink = np.full(heads, -np.inf) if sinks is None else sinks
        sink = sink.reshape(shape.num_kv_heads, group, 1, 1)
        top = np.maximum(score.max(-1, keepdims=True), sink)
        part = np.exp(score - top)
        part = part / (part.sum(-1, keepdims=True) + np.exp(sink - top))
        out[rows] = np.einsum("kgts,skd->tkgd", part, values, optimize=True).reshape(count, -1)
    return out
