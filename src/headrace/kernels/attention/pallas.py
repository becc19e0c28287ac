"""Ragged paged attention on a TPU: decodes and chunks of prompts in one kernel, read from the pages of the cache.

A grid step is a tile of queries of one sequence. It walks the pages that its queries see in an online softmax
(arXiv:2205.14135), and copies the next page while it computes one. The query heads of one KV head are adjacent, so that
a page is read once for all of them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from headrace.kernels.pallaslib.work_lists import tiles

__all__ = ["attention", "tile_rows"]

Array = Any
_NEVER = -1e30
"""The score of masked keys: finite, so that a row without a visible key gives no NaN."""
_LANES = 128


class _Shape(NamedTuple):
    scale: float
    window: int | None
    soft_cap: float | None
    group: int
    """Query heads per KV head."""
    page: int
    heads: int
    quantized: bool
    sinks: bool
    alibi: bool


def tile_rows(tokens: int, sequences: int, group: int) -> int:
    """Queries per tile: one if the bucket holds only decodes, otherwise enough for about 128 rows of a product."""
    if tokens <= 2 * sequences:
        return 1
    return max(8, min(128 // group, 1 << (tokens - 1).bit_length()))


def attention(
    q: Array,
    query_start: Array,
    positions: Array,
    block_tables: Array,
    keys: Array,
    values: Array,
    key_scales: Array | None,
    value_scales: Array | None,
    sinks: Array | None,
    alibi: Array | None,
    *,
    scale: float,
    head_dim: int,
    window: int | None = None,
    soft_cap: float | None = None,
    tile: int = 1,
    interpret: Any = False,
) -> Array:
    """Attention of q [T, Hq d]: [T, Hq d] in q's dtype. Rows of padding are undefined.

    `query_start` [S + 1], `positions` [T] and `block_tables` [S, B] are int32. Keys and values are [N, Hk, page, d],
    with d padded to complete lanes; int8 has scales [N, Hk, page]. `sinks` and `alibi` are float32 [Hq] or None.
    """
    heads, page, size = keys.shape[1:]
    group = q.shape[1] // (heads * head_dim)
    work = tiles(query_start, positions, tile)
    count, height = work.count.shape[0], tile * group
    shape = _Shape(
        scale, window, soft_cap, group, page, heads, key_scales is not None, sinks is not None, alibi is not None
    )
    lanes = jnp.pad(q.reshape(-1, heads, group, head_dim), ((0, 0), (0, 0), (0, 0), (0, size - head_dim)))
    grouped = lanes[work.rows]
    grouped = grouped.transpose(0, 2, 1, 3, 4).reshape(count, heads, height, size)
    a_tile = pl.BlockSpec((1, heads, height, size), lambda step, *_: (step, 0, 0, 0))
    a_head = pl.BlockSpec((heads, height, 1), lambda step, *_: (0, 0, 0))
    extra = [
        jnp.tile(x.astype(jnp.float32).reshape(heads, group), (1, tile))[..., None]
        for x in (sinks, alibi)
        if x is not None
    ]
    stores = [keys, values, *([key_scales, value_scales] if key_scales is not None else [])]
    buffers = [pltpu.VMEM((2, *x.shape[1:]), x.dtype) for x in stores]
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=4,
        grid=(count,),
        in_specs=[a_tile, *[a_head] * len(extra), *[pl.BlockSpec(memory_space=pl.ANY)] * len(stores)],
        out_specs=a_tile,
        scratch_shapes=[
            *buffers,
            pltpu.SemaphoreType.DMA((2, len(stores))),
            pltpu.VMEM((heads, height, size), jnp.float32),
            pltpu.VMEM((heads, height, _LANES), jnp.float32),
            pltpu.VMEM((heads, height, _LANES), jnp.float32),
        ],
    )
    call = pl.pallas_call(
        functools.partial(_kernel, shape),
        grid_spec=grid,
        out_shape=jax.ShapeDtypeStruct(grouped.shape, q.dtype),
        interpret=interpret,
        name="headrace_attention",
    )
    found = call(work.sequence, work.first, work.count, block_tables, grouped, *extra, *stores)
    found = found[..., :head_dim].reshape(count, heads, tile, group, head_dim)
    found = found.transpose(0, 2, 1, 3, 4).reshape(count * tile, -1)
    return found[work.place]


def _kernel(shape: _Shape, sequence: Any, first: Any, count: Any, tables: Any, q: Any, *refs: Any) -> None:
    refs_ = list(refs)
    sinks = refs_.pop(0) if shape.sinks else None
    alibi = refs_.pop(0) if shape.alibi else None
    width = 4 if shape.quantized else 2
    stores, out, buffers = refs_[:width], refs_[width], refs_[width + 1 : 2 * width + 1]
    arrived, total, peak, norm = refs_[2 * width + 1 :]
    step = pl.program_id(0)
    start = first[step]
    last = lax.div(start + count[step] - 1, shape.page)
    lowest = 0 if shape.window is None else lax.div(jnp.maximum(start - shape.window + 1, 0), shape.page)

    def copies(page: Any) -> list[Any]:
        slot = lax.rem(page, 2)
        block = tables[sequence[step], page]
        return [
            pltpu.make_async_copy(store.at[block], buffer.at[slot], arrived.at[slot, at])
            for at, (store, buffer) in enumerate(zip(stores, buffers, strict=True))
        ]

    def compute() -> None:
        for copy in copies(lowest):
            copy.start()
        total[...] = jnp.zeros_like(total)
        peak[...] = jnp.full_like(peak, _NEVER) if sinks is None else jnp.broadcast_to(sinks[...], peak.shape)
        norm[...] = jnp.full_like(norm, 0.0 if sinks is None else 1.0)

        def visit(page: Any, carry: Any) -> Any:
            def ahead() -> None:
                for copy in copies(page + 1):
                    copy.start()

            pl.when(page < last)(ahead)
            for copy in copies(page):
                copy.wait()
            held = [buffer.at[lax.rem(page, 2)] for buffer in buffers]
            for head in range(shape.heads):
                _page(shape, head, start, page * shape.page, q, held, alibi, (total, peak, norm))
            return carry

        lax.fori_loop(lowest, last + 1, visit, None)
        out[0] = (total[...] / norm[..., :1]).astype(out.dtype)

    pl.when(count[step] > 0)(compute)


def _page(
    shape: _Shape, head: int, start: Any, base: Any, q: Any, held: list[Any], alibi: Any, sums: tuple[Any, ...]
) -> None:
    """Add one page's keys to the state of one head's queries."""
    total, peak, norm = sums
    narrow = jnp.bfloat16 if q.dtype == jnp.bfloat16 else jnp.float32
    key, value = held[0][head].astype(narrow), held[1][head].astype(narrow)
    score = _product(q[0, head], key, 1) * shape.scale
    if shape.quantized:
        score = score * held[2][head : head + 1]
    if shape.soft_cap is not None:
        score = jnp.tanh(score / shape.soft_cap) * shape.soft_cap
    row = lax.broadcasted_iota(jnp.int32, score.shape, 0)
    away = base + lax.broadcasted_iota(jnp.int32, score.shape, 1) - start - lax.div(row, shape.group)
    if shape.alibi:
        score = score + alibi[head] * away.astype(jnp.float32)
    seen = away <= 0
    if shape.window is not None:
        seen = seen & (away > -shape.window)
    score = jnp.where(seen, score, _NEVER)
    before = peak[head]
    top = jnp.maximum(before, jnp.max(score, axis=1, keepdims=True))
    fade = jnp.exp(before - top)
    part = jnp.where(seen, jnp.exp(score - top[:, :1]), 0.0)
    norm[head] = norm[head] * fade + jnp.sum(part, axis=1, keepdims=True)
    peak[head] = top
    if shape.quantized:
        part = part * held[3][head : head + 1]
    total[head] = total[head] * fade[:, :1] + _product(part.astype(narrow), value, 0)


def _product(a: Any, b: Any, contract: int) -> Any:
    """The float32 product a b^T (`contract` 1) or a b (0)."""
    exact = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(a, b, (((1,), (contract,)), ((), ())), preferred_element_type=jnp.float32, precision=exact)
