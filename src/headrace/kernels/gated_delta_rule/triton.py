"""Triton form of `gated_delta_rule`: chunk by chunk with matrix products, for decodes and prompts.

Within a chunk of C tokens the writes u solve (I + A) u = beta (v - e^G K S), with A_ij = beta_i e^(G_i - G_j) k_i k_j
for j < i, and G the running sum of the log decays (the WY form of arXiv:2412.06464). Then o = e^G Q S +
(Q K^T e^(G_i - G_j)) u, and the state S is that after the chunk's last token. Row i uses only rows up to i, and tokens
that are not computed yet count as zeros. So the rows of an unfinished chunk have the same bits as in the full chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.ops import Batch
from headrace.kernels.recurrence import CHUNK
from headrace.kernels.tritonlib.device import jit
from headrace.kernels.tritonlib.launch_config import LaunchConfig
from headrace.kernels.tritonlib.scan_rows import keep_kernel, load_gate, load_rows, part_of, rows_of

__all__ = ["delta_kernel", "gated_delta_rule"]

Tensor = torch.Tensor


@jit
def solve(a: tensor, u: tensor, CHUNK: tl.constexpr) -> tensor:
    """Solve (I + a) x = u for x, with a strictly lower triangular: rows in ascending order."""
    row = tl.arange(0, CHUNK)
    for i in range(1, CHUNK):
        factor = tl.sum(tl.where((row == i)[:, None], a, 0.0), 0)
        known = tl.sum(factor[:, None] * u, 0)
        u = tl.where((row == i)[:, None], u - known[None, :], u)
    return u


@jit
def length(x: tensor, NORMALISE: tl.constexpr) -> tensor:
    """The sum of squares of each row; zeros if the operator doesn't normalize."""
    wide = x.to(tl.float32)
    return tl.sum(wide * wide, 1) if NORMALISE else tl.zeros([x.shape[0]], tl.float32)


@jit
def leave(
    qkv: tensor, own: tensor, s: tensor, u: tensor, left: tensor, fade: tensor, token: tensor, first_k: tensor,
    row: tensor, fresh: tensor, old: tensor, live: tensor, v_in: tensor, WIDTH: tl.constexpr, SKIP: tl.constexpr,
    KEPT: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PIECE: tl.constexpr,
) -> None:  # fmt: skip
    """Update the state after a full chunk: multiply it by `fade` and add each write u to its key, times `left`."""
    for first in range(0, DK, PIECE):
        kd = first + tl.arange(0, PIECE)
        k = load_rows(qkv, own, token, first_k, row, fresh, old, kd, kd < DK, WIDTH, SKIP, KEPT)
        part = tl.load(s + kd[:, None] * DV, (kd < live)[:, None] & v_in[None, :], 0.0)
        k = (k.to(tl.float32) * left[:, None]).to(u.dtype)
        part = tl.dot(tl.trans(k), u, part * fade, input_precision="ieee")
        tl.store(s + kd[:, None] * DV, part, (kd < DK)[:, None] & v_in[None, :])
    tl.debug_barrier()  # other threads read it in the next chunk


@jit
def delta_kernel(
    qkv: tensor, decay: tensor, strength: tensor, out: tensor, state: tensor, pending: tensor, query_start: tensor,
    context_lens: tensor, slots: tensor, scale: float, NORMALISE: tl.constexpr, K_HEADS: tl.constexpr,
    HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PART: tl.constexpr, PIECE: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per sequence, value head and PART columns of its state.

    The state stays in memory and is read PIECE rows at a time. `pending` is read here and written later by keep_kernel.
    """
    # Grid (sequences, value heads, parts of PART columns). `qkv` is [T, 2 K_HEADS DK + HEADS DV]: queries, keys,
    # values. `state` is [slots, HEADS, DK, DV] in float32, `pending` [slots, CHUNK, KEPT]: keys, values, decay and
    # strength of an unfinished chunk. The columns of a state are independent, so each program owns PART of them; it
    # computes the products that all columns share (K K^T, Q K^T) itself.
    # The program walks the chunks in order, from the one that holds its first new token. Rows of that chunk from
    # earlier calls are read from `pending`, the others from `qkv` (`load_rows`): every chunk is computed completely, at
    # absolute positions. In a chunk it walks DK in pieces of PIECE rows for the four products with keys, queries and
    # the old state, solves for the writes u, stores the outputs of new tokens, and updates the state only for a full
    # chunk (`leave`, a second walk over DK). The state stays in memory, because the products need the registers. In
    # chunk 0 it counts as zeros and is not read, so that slots need not be cleared.
    WIDTH: tl.constexpr = 2 * K_HEADS * DK + HEADS * DV
    KEPT: tl.constexpr = K_HEADS * DK + HEADS * DV + 2 * HEADS
    SKIP: tl.constexpr = K_HEADS * DK
    seq, head = tl.program_id(0), tl.program_id(1)
    start, context = tl.load(query_start + seq).to(tl.int64), tl.load(context_lens + seq)
    before = context - (tl.load(query_start + seq + 1) - start).to(tl.int32)
    if before < context:
        slot = tl.load(slots + seq).to(tl.int64)
        own = pending + slot * CHUNK * KEPT
        k_head = head // (HEADS // K_HEADS)
        vd, row = tl.program_id(2) * PART + tl.arange(0, PART), tl.arange(0, CHUNK)
        v_in = vd < DV
        s = state + (slot * HEADS + head) * DK * DV + vd[None, :]
        below, upto = row[:, None] > row[None, :], row[:, None] >= row[None, :]
        for chunk in range(before // CHUNK, (context + CHUNK - 1) // CHUNK):
            token, fresh, old = rows_of(chunk, before, context, start, CHUNK)
            kk, qk = tl.zeros([CHUNK, CHUNK], tl.float32), tl.zeros([CHUNK, CHUNK], tl.float32)
            known, seen = tl.zeros([CHUNK, PART], tl.float32), tl.zeros([CHUNK, PART], tl.float32)
            k_size, q_size = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
            live = tl.where(chunk > 0, DK, 0)
            for first in range(0, DK, PIECE):
                kd = first + tl.arange(0, PIECE)
                q_at = qkv + token[:, None] * WIDTH + k_head * DK + kd[None, :]
                q = tl.load(q_at, fresh[:, None] & (kd < DK)[None, :], 0.0)
                k = load_rows(qkv, own, token, k_head * DK, row, fresh, old, kd, kd < DK, WIDTH, SKIP, KEPT)
                part = tl.load(s + kd[:, None] * DV, (kd < live)[:, None] & v_in[None, :], 0.0).to(k.dtype)
                kk = tl.dot(k, tl.trans(k), kk, input_precision="ieee")
                qk = tl.dot(q, tl.trans(k), qk, input_precision="ieee")
                known = tl.dot(k, part, known, input_precision="ieee")
                seen = tl.dot(q, part, seen, input_precision="ieee")
                k_size, q_size = k_size + length(k, NORMALISE), q_size + length(q, NORMALISE)
            v = load_rows(qkv, own, token, K_HEADS * DK + head * DV, row, fresh, old, vd, v_in, WIDTH, SKIP, KEPT)
            log = load_gate(decay, own, token, head, row, fresh, old, HEADS, KEPT - 2 * HEADS, KEPT)
            beta = load_gate(strength, own, token, head, row, fresh, old, HEADS, KEPT - HEADS, KEPT)
            if NORMALISE:
                k_size, q_size = 1.0 / tl.sqrt(k_size + 1e-6), scale / tl.sqrt(q_size + 1e-6)
            else:
                k_size, q_size = k_size + 1.0, q_size + scale
            total = tl.cumsum(log, 0)
            fade, between = tl.exp(total), tl.exp(tl.where(upto, total[:, None] - total[None, :], 0.0))
            between *= k_size[None, :]
            a = tl.where(below, kk * between * (beta * k_size)[:, None], 0.0)
            u = (v.to(tl.float32) - known * (fade * k_size)[:, None]) * beta[:, None]
            u = solve(a, u, CHUNK).to(v.dtype)
            mix = tl.where(upto, qk * between * q_size[:, None], 0.0).to(v.dtype)
            result = tl.dot(mix, u, seen * (fade * q_size)[:, None], input_precision="ieee")
            target = out + (token[:, None] * HEADS + head) * DV + vd[None, :]
            tl.store(target, result.to(out.dtype.element_ty), fresh[:, None] & v_in[None, :])
            if chunk * CHUNK + CHUNK <= context:
                end = tl.sum(tl.where(row == CHUNK - 1, total, 0.0), 0)
                leave(
                    qkv, own, s, u, k_size * tl.exp(end - total), tl.exp(end), token, k_head * DK, row, fresh, old,
                    live, v_in, WIDTH, SKIP, KEPT, DK, DV, PIECE,
                )  # fmt: skip


def gated_delta_rule(
    qkv: Tensor,
    decay: Tensor,
    strength: Tensor,
    batch: Batch,
    state: Tensor,
    pending: Tensor,
    num_k_heads: int,
    scale: float,
    normalise: bool,
    *,
    config: LaunchConfig,
) -> Tensor:
    """See `ops.OptionalOps.gated_delta_rule`; rows past the true token count are undefined."""
    _, heads, dk, dv = state.shape
    part, piece, warps = part_of(dv, dk, qkv.dtype == torch.float32, config)
    seqs = len(batch.context_lens)
    qkv, decay, strength = qkv.contiguous(), decay.contiguous(), strength.contiguous()
    out = qkv.new_empty(len(qkv), heads * dv)
    lens = {"query_start": batch.query_start, "context_lens": batch.context_lens, "slots": batch.slots}
    args: dict[str, Any] = {
        **lens,
        "qkv": qkv,
        "decay": decay,
        "strength": strength,
        "out": out,
        "state": state,
        "pending": pending,
        "scale": scale,
        "NORMALISE": normalise,
        "K_HEADS": num_k_heads,
        "HEADS": heads,
        "DK": dk,
        "DV": dv,
        "PART": part,
        "PIECE": piece,
        "CHUNK": CHUNK,
    }
    config.launch(delta_kernel, (seqs, heads, -(-dv // part)), args, warps, 1)
    kept = {"pending": pending, "first": qkv, "second": decay, "third": strength, **lens}
    skip = num_k_heads * dk
    sizes = {"WIDTH": qkv.shape[1], "SKIP": skip, "FIRST": skip + heads * dv, "SECOND": heads, "THIRD": heads}
    config.launch(keep_kernel, (seqs, CHUNK), {**kept, **sizes, "CHUNK": CHUNK, "BLOCK": 1024}, 4, 1)
    return out
