"""One tile of queries against one range of keys, shared by decode and prefill, so that both give the same bits.

Keys are processed in groups of KEYS in an online softmax (arXiv:2205.14135) that starts again every SPLIT keys; the
splits of a query are then merged in ascending order. Group and split boundaries are absolute positions, and a group
without a visible key does not change a row. So a query's arithmetic depends on neither the batch nor the chunking.
"""

from __future__ import annotations

import triton.language as tl
from triton.language import tensor

from headrace.kernels.tritonlib.device import as_float, jit, tanh

__all__ = ["attend", "finish", "load_queries", "merge", "start_state"]


@jit
def load_queries(
    q: tensor, alibi: tensor, start: tensor, first: tensor, count: tensor, kv_head: tensor, TILE: tl.constexpr,
    GROUP: tl.constexpr, Q_HEADS: tl.constexpr, SIZE: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr,
) -> tensor:  # fmt: skip
    """(queries [ROWS, PAD], rows of q, heads, valid rows, local index, slopes).

    Row r is query r div GROUP of the tile, head r mod GROUP.
    """
    row, dim = tl.arange(0, ROWS), tl.arange(0, PAD)
    local = first + row // GROUP
    head = kv_head * GROUP + row % GROUP
    there = (row < TILE * GROUP) & (local < count)
    place = (start + local).to(tl.int64) * Q_HEADS + head
    value = tl.load(q + place[:, None] * SIZE + dim[None, :], there[:, None] & (dim < SIZE)[None, :], 0.0)
    slope = tl.zeros([ROWS], tl.float32)
    if alibi is not None:
        slope = tl.load(alibi + head, there, 0.0).to(tl.float32)
    return value, place, head, there, local, slope


@jit
def attend(
    q: tensor, position: tensor, slope: tensor, low: tensor, high: tensor, keys: tensor, values: tensor,
    key_scales: tensor, value_scales: tensor, table: tensor, kv_head: tensor, scale: tensor, soft_cap: tensor,
    window: tensor, ALIBI: tl.constexpr, CAP: tl.constexpr, WINDOW: tl.constexpr, KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr,
) -> tensor:  # fmt: skip
    """(peak [ROWS], norm [ROWS], out [ROWS, PAD]) of keys low to high - 1; low is a multiple of KEYS."""
    peak, norm, out = start_state(ROWS, PAD)
    dim = tl.arange(0, PAD)
    for first in range(low, high, KEYS):
        key = first + tl.arange(0, KEYS)
        there = key < high
        block = tl.load(table + key // BLOCK, there, 0).to(tl.int64)
        row = (block * KV_HEADS + kv_head) * BLOCK + key % BLOCK
        place = row[:, None] * SIZE + dim[None, :]
        inside = there[:, None] & (dim < SIZE)[None, :]
        k = as_float(tl.load(keys + place, inside, 0), q.dtype)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if key_scales is not None:
            score *= tl.load(key_scales + row, there, 0.0)[None, :]
        if CAP:
            score = soft_cap * tanh(score / soft_cap)
        if ALIBI:
            score += slope[:, None] * (key[None, :] - position[:, None]).to(tl.float32)
        seen = (key[None, :] <= position[:, None]) & there[None, :]
        if WINDOW:
            seen = seen & (key[None, :] > position[:, None] - window)
        score = tl.where(seen, score, float("-inf"))
        top = tl.maximum(peak, tl.max(score, 1))
        safe = tl.where(top == float("-inf"), 0.0, top)
        part, fade = tl.exp(score - safe[:, None]), tl.exp(peak - safe)
        norm = norm * fade + tl.sum(part, 1)
        if value_scales is not None:
            part *= tl.load(value_scales + row, there, 0.0)[None, :]
        v = as_float(tl.load(values + place, inside, 0), q.dtype)
        out = tl.dot(part.to(q.dtype), v, out * fade[:, None], input_precision="ieee")
        peak = top
    return peak, norm, out


@jit
def start_state(ROWS: tl.constexpr, PAD: tl.constexpr) -> tensor:
    """The state before the first key."""
    return tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, PAD], tl.float32)


@jit
def merge(peak: tensor, norm: tensor, out: tensor, peak2: tensor, norm2: tensor, out2: tensor) -> tensor:
    """The state of two ranges of keys together."""
    top = tl.maximum(peak, peak2)
    safe = tl.where(top == float("-inf"), 0.0, top)
    old, new = tl.exp(peak - safe), tl.exp(peak2 - safe)
    return top, norm * old + norm2 * new, out * old[:, None] + out2 * new[:, None]


@jit
def finish(peak: tensor, norm: tensor, out: tensor, sinks: tensor, head: tensor, there: tensor) -> tensor:
    """The weighted mean of the values; a sink is added to the denominator like a key without a value."""
    if sinks is not None:
        sink = tl.load(sinks + head, there, 0.0).to(tl.float32)
        peak, norm, out = merge(peak, norm, out, sink, tl.zeros_like(norm) + 1.0, tl.zeros_like(out))
    return out / norm[:, None]
