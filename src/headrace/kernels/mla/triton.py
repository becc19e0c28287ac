"""Triton form of `mla`: decodes are split over their keys, each token of a prompt has its own programs, in one batch.

Both process the same groups of keys in the same splits, at absolute positions, with the same tile of heads. So a token
gets the same bits in a decode, in a chunk, in a complete prompt, and in every batch. The heads of one token fill a
tile, so the queries of several tokens are not combined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.attention.triton import combine_kernel
from headrace.kernels.attention.triton_tile import finish, merge, start_state
from headrace.kernels.ops import Batch
from headrace.kernels.tritonlib.device import as_float, jit, jit_varying, next_power
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["SPLIT", "MlaTiling", "latent_decode_kernel", "latent_prefill_kernel", "mla", "mla_tiling"]

Tensor = torch.Tensor
SPLIT = 512
"""Keys per split, independently of the batch."""


@dataclass(frozen=True, slots=True)
class MlaTiling:
    """The tile of a program: rows (heads of one token) times keys."""

    rows: int
    keys: int
    piece: int
    """Elements of a latent that one step of the scores' product uses."""
    warps: int
    stages: int


def mla_tiling(pad: int, wide: bool, config: LaunchConfig) -> MlaTiling:
    """The tiling for latents of `pad` elements: as large as registers allow.

    float32 (`wide`) needs more registers. With a small tile and narrow warps, every warp holds all queries.
    """
    roomy, narrow = config.tile == 64, config.tile == 32 and config.lanes == 32
    threads = 512 if narrow or (roomy and wide) else 256
    piece = pad
    if narrow or wide:
        piece = min(pad, 256 if roomy else 16 if wide else 64)
    keys, stages = (32, 2) if roomy and not wide else (16, 1)
    return MlaTiling(16, keys, piece, threads // config.lanes, stages)


@jit
def load_heads(
    q: tensor, token: tensor, head: tensor, first: tensor, END: tl.constexpr, HEADS: tl.constexpr, PAD: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tensor:  # fmt: skip
    """[ROWS, PAD]: elements first to first + PAD - 1 of the heads' queries, zeros from END on."""
    dim = first + tl.arange(0, PAD)
    place = (token.to(tl.int64) * HEADS + head) * WIDTH
    return tl.load(q + place[:, None] + dim[None, :], (head < HEADS)[:, None] & (dim < END)[None, :], 0.0)


@jit
def attend_latents(
    q: tensor, token: tensor, head: tensor, low: tensor, high: tensor, rows: tensor, scales: tensor, table: tensor,
    scale: tensor, HEADS: tl.constexpr, RANK: tl.constexpr, RPAD: tl.constexpr, ROPE: tl.constexpr, PPAD: tl.constexpr,
    PIECE: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr,
) -> tensor:  # fmt: skip
    """(peak [ROWS], norm [ROWS], out [ROWS, RPAD]) of keys low to high - 1; low is a multiple of KEYS."""
    peak, norm, out = start_state(ROWS, RPAD)
    dim, turn = tl.arange(0, RPAD), tl.arange(0, PPAD)
    rotary = load_heads(q, token, head, RANK, RANK + ROPE, HEADS, PPAD, RANK + ROPE)
    whole = load_heads(q, token, head, 0, RANK, HEADS, PIECE, RANK + ROPE)
    for first in range(low, high, KEYS):
        key = first + tl.arange(0, KEYS)
        there = key < high
        row = tl.load(table + key // BLOCK, there, 0).to(tl.int64) * BLOCK + key % BLOCK
        start = rows + row[:, None] * (RANK + ROPE)
        c = as_float(tl.load(start + dim[None, :], there[:, None] & (dim < RANK)[None, :], 0), q.dtype.element_ty)
        k = as_float(
            tl.load(start + RANK + turn[None, :], there[:, None] & (turn < ROPE)[None, :], 0), q.dtype.element_ty
        )
        score = tl.dot(rotary, tl.trans(k), input_precision="ieee")
        if PIECE == RPAD:
            score = tl.dot(whole, tl.trans(c), score, input_precision="ieee")
        else:
            for at in range(0, RPAD, PIECE):
                some = at + tl.arange(0, PIECE)
                p = tl.load(start + some[None, :], there[:, None] & (some < RANK)[None, :], 0)
                part = load_heads(q, token, head, at, RANK, HEADS, PIECE, RANK + ROPE)
                score = tl.dot(part, tl.trans(as_float(p, q.dtype.element_ty)), score, input_precision="ieee")
        score *= scale
        if scales is not None:
            score *= tl.load(scales + row, there, 0.0)[None, :]
        score = tl.where(there[None, :], score, float("-inf"))
        top = tl.maximum(peak, tl.max(score, 1))
        part, fade = tl.exp(score - top[:, None]), tl.exp(peak - top)
        norm = norm * fade + tl.sum(part, 1)
        if scales is not None:
            part *= tl.load(scales + row, there, 0.0)[None, :]
        out = tl.dot(part.to(q.dtype.element_ty), c, out * fade[:, None], input_precision="ieee")
        peak = top
    return peak, norm, out


@jit_varying("table_width")
def latent_decode_kernel(
    q: tensor, part_out: tensor, part_peak: tensor, part_norm: tensor, rows: tensor, scales: tensor,
    query_start: tensor, context_lens: tensor, block_tables: tensor, table_width: int, scale: float,
    HEADS: tl.constexpr, RANK: tl.constexpr, RPAD: tl.constexpr, ROPE: tl.constexpr, PPAD: tl.constexpr,
    PIECE: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr,
) -> None:  # fmt: skip
    """One program per sequence with one token, tile of heads and split; parts [S, Hq, splits] and [S, Hq, splits,
    RANK]."""
    # Grid (sequences, tiles of heads, splits). `q` is [T, HEADS, RANK + ROPE], absorbed: its first RANK elements are
    # multiplied with the latent, the rest with the rotated key. `rows` is the cache [blocks, BLOCK, RANK + ROPE],
    # `scales` is [blocks, BLOCK] or None. All heads share one latent, so ROWS heads of the token are the tile's rows.
    # Each latent is read once for them; it is the key, and its first RANK elements are the value.
    # The program walks the keys of its split KEYS at a time (`attend_latents`) and stores peak, sum and weighted
    # latents in the parts, which attention's combine_kernel merges in ascending order. If a latent is too wide for the
    # registers, the scores' product uses PIECE elements at a time and reads them again.
    seq, split = tl.program_id(0), tl.program_id(2)
    start, context = tl.load(query_start + seq), tl.load(context_lens + seq)
    low, high = split * SPLIT, tl.minimum(split * SPLIT + SPLIT, context)
    if (tl.load(query_start + seq + 1) - start == 1) & (low < high):
        head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        peak, norm, out = attend_latents(
            q, start, head, low, high, rows, scales, block_tables + seq.to(tl.int64) * table_width, scale, HEADS, RANK,
            RPAD, ROPE, PPAD, PIECE, BLOCK, KEYS, ROWS,
        )  # fmt: skip
        there, dim = head < HEADS, tl.arange(0, RPAD)
        place = (seq.to(tl.int64) * HEADS + head) * tl.num_programs(2) + split
        tl.store(part_peak + place, peak, there)
        tl.store(part_norm + place, norm, there)
        tl.store(part_out + place[:, None] * RANK + dim[None, :], out, there[:, None] & (dim < RANK)[None, :])


@jit_varying("table_width")
def latent_prefill_kernel(
    q: tensor, out: tensor, rows: tensor, scales: tensor, sizes: tensor, positions: tensor, token_seq: tensor,
    query_start: tensor, block_tables: tensor, table_width: int, scale: float, HEADS: tl.constexpr, RANK: tl.constexpr,
    RPAD: tl.constexpr, ROPE: tl.constexpr, PPAD: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr,
    KEYS: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr,
) -> None:  # fmt: skip
    """One program per token and tile of heads; sequences with one token are computed by latent_decode_kernel."""
    # Grid (tokens, tiles of heads). Pointers as in latent_decode_kernel; `out` is [T, HEADS, RANK], `positions` and
    # `token_seq` are [T]. A token has enough heads to fill a tile (128 in the models in use), so each program computes
    # one token. Thus no scores above the diagonal are computed, and a token's arithmetic cannot depend on other tokens.
    # The program walks the keys up to its own position in the splits and groups that a decode would use, and merges the
    # splits itself, in ascending order.
    token = tl.program_id(0)
    if token < tl.load(sizes):
        seq = tl.load(token_seq + token)
        if tl.load(query_start + seq + 1) - tl.load(query_start + seq) > 1:
            head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
            high = tl.load(positions + token) + 1
            peak, norm, total = start_state(ROWS, RPAD)
            for split in range(0, (high + SPLIT - 1) // SPLIT):
                peak2, norm2, total2 = attend_latents(
                    q, token, head, split * SPLIT, tl.minimum(split * SPLIT + SPLIT, high), rows, scales,
                    block_tables + seq.to(tl.int64) * table_width, scale, HEADS, RANK, RPAD, ROPE, PPAD, PIECE, BLOCK,
                    KEYS, ROWS,
                )  # fmt: skip
                peak, norm, total = merge(peak, norm, total, peak2, norm2, total2)
            there, dim = head < HEADS, tl.arange(0, RPAD)
            mean = finish(peak, norm, total, None, head, there)
            place = (token.to(tl.int64) * HEADS + head)[:, None] * RANK + dim[None, :]
            tl.store(out + place, mean.to(out.dtype.element_ty), there[:, None] & (dim < RANK)[None, :])


def mla(
    q: Tensor, batch: Batch, latents: Tensor, scales: Tensor | None, rank: int, scale: float, *, config: LaunchConfig
) -> Tensor:
    """See `ops.OptionalOps.mla`; rows past the true token count are undefined."""
    _, block, width = latents.shape
    heads, rope = q.shape[1] // width, width - rank
    wide = torch.float32 in (q.dtype, latents.dtype)
    pad = next_power(rank, 16)
    step = mla_tiling(pad, wide, config)
    shared: dict[str, Any] = {
        "q": q.float() if wide else q.contiguous(),
        "rows": latents.view(torch.uint8) if latents.dtype == torch.float8_e4m3fn else latents,
        "scales": scales,
        "query_start": batch.query_start,
        "block_tables": batch.block_tables,
        "table_width": batch.block_tables.shape[1],
        "scale": scale,
        "HEADS": heads,
        "RANK": rank,
        "RPAD": pad,
        "ROPE": rope,
        "PPAD": next_power(rope, 16),
        "PIECE": step.piece,
        "BLOCK": block,
        "KEYS": step.keys,
        "ROWS": step.rows,
        "SPLIT": SPLIT,
    }
    out = q.new_empty(len(q), heads * rank)
    _decode(config, batch, out, shared, step)
    if len(q) > 1:
        more = {"out": out, "sizes": batch.sizes, "positions": batch.positions, "token_seq": batch.token_seq}
        grid = (len(q), -(-heads // step.rows))
        config.launch(latent_prefill_kernel, grid, {**shared, **more}, step.warps, step.stages)
    return out


def _decode(config: LaunchConfig, batch: Batch, out: Tensor, shared: dict[str, Any], step: MlaTiling) -> None:
    seqs, heads, rank = len(batch.context_lens), shared["HEADS"], shared["RANK"]
    splits = -(-shared["table_width"] * shared["BLOCK"] // SPLIT)
    peak, norm = (out.new_empty(seqs, heads, splits, dtype=torch.float32) for _ in range(2))
    mixed = out.new_empty(seqs, heads, splits, rank, dtype=torch.float32)
    parts = {"part_out": mixed, "part_peak": peak, "part_norm": norm, "context_lens": batch.context_lens}
    grid = (seqs, -(-heads // step.rows), splits)
    config.launch(latent_decode_kernel, grid, {**shared, **parts}, step.warps, step.stages)
    args = {name: shared[name] for name in ("query_start", "KEYS", "SPLIT")}
    args |= {"sinks": None, "window": 0, "WINDOW": False, "SIZE": rank, "PAD": shared["RPAD"], "Q_HEADS": heads}
    config.launch(combine_kernel, (seqs, heads), {**args, **parts, "out": out, "splits": splits}, 1, 1)
