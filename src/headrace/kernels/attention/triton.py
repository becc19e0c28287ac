"""Triton form of `attention`: decodes are split over their keys, prompts are computed by tiles of queries, in one
batch.

The kind of each sequence is read on the device, so that the host need not wait and a captured graph fits every batch of
its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.attention.triton_tile import attend, finish, load_queries, merge, start_state
from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch
from headrace.kernels.tritonlib.cache_tensors import stored, stored_scales
from headrace.kernels.tritonlib.device import jit, jit_varying, next_power
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = [
    "SPLIT",
    "AttentionTiling",
    "attention",
    "attention_tiling",
    "combine_kernel",
    "decode_kernel",
    "prefill_kernel",
]

Tensor = torch.Tensor
SPLIT = 512
"""Keys per split, independently of the batch."""


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """The tile of a program: rows of queries (a group of heads each) times keys.

    Decodes have a separate tile if results may depend on the batch.
    """

    rows: int
    keys: int
    warps: int
    decode_rows: int
    decode_warps: int
    stages: int


def attention_tiling(pad: int, group: int, wide: bool, alibi: bool, config: LaunchConfig) -> AttentionTiling:
    """The tiling for heads of `pad` elements: as large as registers allow. float32 (`wide`), long heads and slopes need
    more registers."""
    roomy = config.tile == 64
    if wide:
        rows, keys, threads = next_power(group, 16), 32 if roomy else 16, 128 if roomy else 512
    elif pad > 128:
        rows, keys, threads = next_power(group, 32), config.tile // 2, 256 if roomy else 512
    else:
        rows, keys, threads = next_power(group, config.tile), config.tile // 2 if alibi else config.tile, 256
    warps, stages = threads // config.lanes, min(config.stages, 2)
    if config.batch_invariant:
        return AttentionTiling(rows, keys, warps, rows, warps, stages)
    return AttentionTiling(rows, keys, warps, next_power(group, 16), max(warps // 2, 1), stages)


@jit_varying("table_width")
def decode_kernel(
    q: tensor, part_out: tensor, part_peak: tensor, part_norm: tensor, keys: tensor, values: tensor, key_scales: tensor,
    value_scales: tensor, query_start: tensor, context_lens: tensor, block_tables: tensor, table_width: int,
    alibi: tensor, scale: float, soft_cap: float, window: int, ALIBI: tl.constexpr, CAP: tl.constexpr,
    WINDOW: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, PAD: tl.constexpr,
    BLOCK: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr,
) -> None:  # fmt: skip
    """One program per sequence with one query, KV head and split; parts [S, Hq, splits] and [S, Hq, splits, SIZE]."""
    # Grid (sequences, KV heads, splits). `q` is [T, Hq, SIZE], `keys` and `values` one layer's
    # [blocks, KV_HEADS, BLOCK, SIZE], their scales [blocks, KV_HEADS, BLOCK] or None, `block_tables` [S, table_width],
    # `query_start` [S + 1]. The tile of queries is the GROUP of query heads that share this KV head, padded to ROWS
    # rows: each key is read once for all of them.
    # The program walks the keys of its split, SPLIT positions from split * SPLIT on, KEYS at a time (`attend`). It
    # looks up each position's block in the table, so that blocks may be anywhere. It stores the peak of the scores, the
    # sum of their exponentials and the weighted sum of the values; combine_kernel merges the splits. Splits give a
    # decode step enough programs: without them a long context would occupy only one multiprocessor. A window starts
    # inside a split at a multiple of KEYS, so that groups of keys stay the same absolute positions. Programs for
    # sequences with several queries, and for splits past the context, end at once: the grid is that of the largest
    # batch.
    seq, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, context = tl.load(query_start + seq), tl.load(context_lens + seq)
    low, high = split * SPLIT, tl.minimum(split * SPLIT + SPLIT, context)
    if WINDOW:
        low = tl.maximum(low, tl.maximum(context - window, 0) // KEYS * KEYS)
    if (tl.load(query_start + seq + 1) - start == 1) & (low < high):
        value, _, head, there, local, slope = load_queries(
            q, alibi, start, 0, 1, kv_head, 1, GROUP, KV_HEADS * GROUP, SIZE, PAD, ROWS
        )
        peak, norm, out = attend(
            value, context - 1 + local, slope, low, high, keys, values, key_scales, value_scales,
            block_tables + seq.to(tl.int64) * table_width, kv_head, scale, soft_cap, window, ALIBI, CAP, WINDOW,
            KV_HEADS, SIZE, PAD, BLOCK, KEYS, ROWS,
        )  # fmt: skip
        dim = tl.arange(0, PAD)
        place = (seq.to(tl.int64) * (KV_HEADS * GROUP) + head) * tl.num_programs(2) + split
        tl.store(part_peak + place, peak, there)
        tl.store(part_norm + place, norm, there)
        tl.store(part_out + place[:, None] * SIZE + dim[None, :], out, there[:, None] & (dim < SIZE)[None, :])


@jit_varying("splits")
def combine_kernel(
    part_out: tensor, part_peak: tensor, part_norm: tensor, out: tensor, sinks: tensor, query_start: tensor,
    context_lens: tensor, window: int, splits: int, Q_HEADS: tl.constexpr, SIZE: tl.constexpr, PAD: tl.constexpr,
    KEYS: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
) -> None:  # fmt: skip
    """One program per sequence with one query and head: merges its splits in ascending order."""
    # Grid (sequences, query heads). `part_out` [S, Hq, splits, SIZE], `part_peak` and `part_norm` [S, Hq, splits], all
    # float32, are the results of decode_kernel; `out` is [T, Hq, SIZE], and a sequence with one query has the row
    # query_start[seq].
    # The program walks the splits that hold a visible key, lowest first, and merges each into its state. The order is
    # fixed, so a result's bits do not depend on which split was ready first. Splits before a window are not read,
    # because they were not written. A sink is added at the end (`finish`).
    seq, head = tl.program_id(0), tl.program_id(1)
    start, context = tl.load(query_start + seq), tl.load(context_lens + seq)
    if tl.load(query_start + seq + 1) - start == 1:
        low = 0
        if WINDOW:
            low = tl.maximum(context - window, 0)
        one, dim = tl.arange(0, 1), tl.arange(0, PAD)
        peak, norm, total = start_state(1, PAD)
        for split in range(low // SPLIT, (context + SPLIT - 1) // SPLIT):
            place = (seq.to(tl.int64) * Q_HEADS + head) * splits + split + one
            part = tl.load(part_out + place[:, None] * SIZE + dim[None, :], (dim < SIZE)[None, :], 0.0)
            peak, norm, total = merge(peak, norm, total, tl.load(part_peak + place), tl.load(part_norm + place), part)
        mean = finish(peak, norm, total, sinks, head + one, one == 0)
        target = out + (start.to(tl.int64) * Q_HEADS + head) * SIZE + dim[None, :]
        tl.store(target, mean.to(out.dtype.element_ty), (dim < SIZE)[None, :])


@jit
def _sequence_of(query_start: tensor, seqs: tensor, tile: tensor, TILE: tl.constexpr) -> tensor:
    """The sequence of a tile, by bisection: the tiles of sequence s begin at query_start[s] div TILE + s."""
    low, high = tile * 0, seqs
    while high - low > 1:
        middle = (low + high) // 2
        before = tl.load(query_start + middle) // TILE + middle <= tile
        low, high = tl.where(before, middle, low), tl.where(before, high, middle)
    return low


@jit_varying("table_width")
def prefill_kernel(
    q: tensor, out: tensor, keys: tensor, values: tensor, key_scales: tensor, value_scales: tensor, sizes: tensor,
    query_start: tensor, context_lens: tensor, block_tables: tensor, table_width: int, alibi: tensor, sinks: tensor,
    scale: float, soft_cap: float, window: int, ALIBI: tl.constexpr, CAP: tl.constexpr, WINDOW: tl.constexpr,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
    KEYS: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """One program per tile of TILE queries and KV head; sequences with one query are computed by decode_kernel."""
    # Grid (tiles of queries, KV heads). Pointers as in decode_kernel; `out` is [T, Hq, SIZE], `sizes` holds the true
    # counts of tokens and of sequences. The queries of all sequences follow each other, and tiles are numbered through
    # the batch: the tiles of sequence s begin at query_start[s] div TILE + s. It may have one more than it needs, so
    # that a tile never spans two sequences. The owner is found by bisection on the device; surplus tiles end at once.
    # TILE queries times GROUP heads are the ROWS of the matrix product.
    # The program walks the keys that its queries may see, from the start (of the window) to its last query, in splits
    # of SPLIT and groups of KEYS like decodes, and merges each split into its state. So a token gets the same bits in a
    # complete prompt, in a chunk and in a decode. Scores above the diagonal are masked, not skipped: only the last
    # groups have any.
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    seq = _sequence_of(query_start, tl.load(sizes + 1), tile, TILE)
    start = tl.load(query_start + seq)
    count = tl.load(query_start + seq + 1) - start
    first = (tile - start // TILE - seq) * TILE
    if (count > 1) & (first < count):
        value, place, head, there, local, slope = load_queries(
            q, alibi, start, first, count, kv_head, TILE, GROUP, KV_HEADS * GROUP, SIZE, PAD, ROWS
        )
        before = tl.load(context_lens + seq) - count
        high = before + tl.minimum(first + TILE, count)
        low = tile * 0
        if WINDOW:
            low = tl.maximum(before + first - window + 1, 0) // KEYS * KEYS
        peak, norm, total = start_state(ROWS, PAD)
        for split in range(low // SPLIT, (high + SPLIT - 1) // SPLIT):
            peak2, norm2, out2 = attend(
                value, before + local, slope, tl.maximum(split * SPLIT, low), tl.minimum(split * SPLIT + SPLIT, high),
                keys, values, key_scales, value_scales, block_tables + seq.to(tl.int64) * table_width, kv_head, scale,
                soft_cap, window, ALIBI, CAP, WINDOW, KV_HEADS, SIZE, PAD, BLOCK, KEYS, ROWS,
            )  # fmt: skip
            peak, norm, total = merge(peak, norm, total, peak2, norm2, out2)
        mean = finish(peak, norm, total, sinks, head, there)
        dim = tl.arange(0, PAD)
        target = out + place[:, None] * SIZE + dim[None, :]
        tl.store(target, mean.to(out.dtype.element_ty), there[:, None] & (dim < SIZE)[None, :])


def attention(
    q: Tensor,
    batch: Batch,
    kv: TorchKV,
    layer: int,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
    alibi: Tensor | None,
    *,
    config: LaunchConfig,
) -> Tensor:
    """See `ops.Ops.attention`; rows past the true token count are undefined."""
    shape, block = kv.layout.layers[layer], kv.layout.block_size
    width = batch.block_tables.shape[1]
    q = q.contiguous()
    wide = q.dtype == torch.float32 or kv.layout.dtype == "float32"
    queries, heads, seqs = q.float() if wide else q, q.shape[1] // shape.head_dim, len(batch.context_lens)
    group, pad = heads // shape.num_kv_heads, next_power(shape.head_dim, 16)
    step = attention_tiling(pad, group, wide, alibi is not None, config)
    shared = {
        "keys": stored(kv.keys, layer),
        "values": stored(kv.values, layer),
        "key_scales": stored_scales(kv.key_scales, layer),
        "value_scales": stored_scales(kv.value_scales, layer),
        "query_start": batch.query_start,
        "context_lens": batch.context_lens,
        "block_tables": batch.block_tables,
        "table_width": width,
        "alibi": alibi,
        "scale": scale,
        "soft_cap": soft_cap or 1.0,
        "window": window or 0,
        "ALIBI": alibi is not None,
        "CAP": soft_cap is not None,
        "WINDOW": window is not None,
        "KV_HEADS": shape.num_kv_heads,
        "GROUP": group,
        "SIZE": shape.head_dim,
        "PAD": pad,
        "BLOCK": block,
        "KEYS": step.keys,
        "SPLIT": SPLIT,
    }
    out = torch.empty_like(q)
    _decode(config, queries, out, shared, sinks, (seqs, -(-width * block // SPLIT)), step)
    if len(q) > 1:
        tile = step.rows // group
        args = {
            **shared,
            "q": queries,
            "out": out,
            "sinks": sinks,
            "sizes": batch.sizes,
            "ROWS": step.rows,
            "TILE": tile,
        }
        grid = (len(q) // tile + seqs, shape.num_kv_heads)
        config.launch(prefill_kernel, grid, args, step.warps, step.stages)
    return out


def _decode(
    config: LaunchConfig,
    q: Tensor,
    out: Tensor,
    shared: dict[str, Any],
    sinks: Tensor | None,
    grid: tuple[int, int],
    step: AttentionTiling,
) -> None:
    seqs, splits = grid
    kv_heads = shared["KV_HEADS"]
    heads = kv_heads * shared["GROUP"]
    peak, norm = (q.new_empty(seqs, heads, splits, dtype=torch.float32) for _ in range(2))
    parts = {
        "part_out": q.new_empty(seqs, heads, splits, shared["SIZE"], dtype=torch.float32),
        "part_peak": peak,
        "part_norm": norm,
    }
    args = {**shared, **parts, "q": q, "ROWS": step.decode_rows}
    config.launch(decode_kernel, (seqs, kv_heads, splits), args, step.decode_warps, step.stages)
    names = ("query_start", "context_lens", "window", "SIZE", "PAD", "KEYS", "SPLIT", "WINDOW")
    args = {name: shared[name] for name in names}
    args |= {**parts, "out": out, "sinks": sinks, "splits": splits, "Q_HEADS": heads}
    config.launch(combine_kernel, (seqs, heads), args, 1, 1)
