"""Triton form of `gated_delta_rule`: a chunk at a time by matrix products, decodes and prompts alike.

Within a chunk of C tokens the writes u solve (I + A) u = beta (v - e^G K S), A_ij = beta_i e^(G_i - G_j) k_i k_j for j < i and G
the running sum of the log decays (the WY form of arXiv:2412.06464); then o = e^G Q S + (Q K^T e^(G_i - G_j)) u, and the chunk's
last token leaves S. Row i of each takes from rows up to i alone, and a token that is not there yet counts as zeros, so the
rows of an unfinished chunk have the bits that they will have in the full one.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.ops import Batch
from headrace.kernels.recurrence import CHUNK
from headrace.kernels.tritonlib.config import Config
from headrace.kernels.tritonlib.device import jit, next_power
from headrace.kernels.tritonlib.recurrence import keep_kernel, load_gate, load_rows, rows_of

__all__ = ["delta_kernel", "gated_delta_rule"]

Tensor = torch.Tensor
_PART = 32
"""Columns of the state that a program holds."""


@jit
def solve(a: tensor, u: tensor, CHUNK: tl.constexpr) -> tensor:
    """u with (I + a) u = the u given, a strictly lower triangular: rows in ascending order."""
    row = tl.arange(0, CHUNK)
    for i in range(1, CHUNK):
        factor = tl.sum(tl.where((row == i)[:, None], a, 0.0), 0)
        told = tl.sum(factor[:, None] * u, 0)
        u = tl.where((row == i)[:, None], u - told[None, :], u)
    return u


@jit
def unit(x: tensor) -> tensor:
    """float32, each row over its length."""
    x = x.to(tl.float32)
    return x / tl.sqrt(tl.sum(x * x, 1) + 1e-6)[:, None]


@jit
def delta_kernel(
    qkv: tensor, decay: tensor, strength: tensor, out: tensor, state: tensor, pending: tensor, query_start: tensor,
    context_lens: tensor, slots: tensor, scale: float, NORMALISE: tl.constexpr, K_HEADS: tl.constexpr,
    HEADS: tl.constexpr, DK: tl.constexpr, KPAD: tl.constexpr, DV: tl.constexpr, PART: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """A program a sequence, value head and PART columns of its state. Reads `pending`, which keep_kernel writes afterwards."""
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
        kd, vd, row = tl.arange(0, KPAD), tl.program_id(2) * PART + tl.arange(0, PART), tl.arange(0, CHUNK)
        k_in, v_in = kd < DK, vd < DV
        place = state + ((slot * HEADS + head) * DK + kd[:, None]) * DV + vd[None, :]
        started = tl.where(before >= CHUNK, DK, 0)
        s = tl.load(place, (kd < started)[:, None] & v_in[None, :], 0.0)
        below, upto = row[:, None] > row[None, :], row[:, None] >= row[None, :]
        for chunk in range(before // CHUNK, (context + CHUNK - 1) // CHUNK):
            token, fresh, old = rows_of(chunk, before, context, start, CHUNK)
            q = tl.load(qkv + token[:, None] * WIDTH + k_head * DK + kd[None, :], fresh[:, None] & k_in[None, :], 0.0)
            k = load_rows(qkv, own, token, k_head * DK, row, fresh, old, kd, k_in, WIDTH, SKIP, KEPT)
            v = load_rows(qkv, own, token, K_HEADS * DK + head * DV, row, fresh, old, vd, v_in, WIDTH, SKIP, KEPT)
            log = load_gate(decay, own, token, head, row, fresh, old, HEADS, KEPT - 2 * HEADS, KEPT)
            beta = load_gate(strength, own, token, head, row, fresh, old, HEADS, KEPT - HEADS, KEPT)
            dtype = k.dtype
            if NORMALISE:
                q, k = unit(q), unit(k)
            q, k = (q.to(tl.float32) * scale).to(dtype), k.to(dtype)
            total = tl.cumsum(log, 0)
            fade, between = tl.exp(total), tl.exp(tl.where(upto, total[:, None] - total[None, :], 0.0))
            a = tl.dot(k, tl.trans(k), input_precision="ieee") * between * beta[:, None]
            told = tl.dot(k, s.to(dtype), input_precision="ieee") * fade[:, None]
            u = solve(tl.where(below, a, 0.0), (v.to(tl.float32) - told) * beta[:, None], CHUNK).to(dtype)
            mix = tl.where(upto, tl.dot(q, tl.trans(k), input_precision="ieee") * between, 0.0).to(dtype)
            seen = tl.dot(q, s.to(dtype), input_precision="ieee") * fade[:, None]
            result = tl.dot(mix, u, seen, input_precision="ieee")
            target = out + (token[:, None] * HEADS + head) * DV + vd[None, :]
            tl.store(target, result.to(out.dtype.element_ty), fresh[:, None] & v_in[None, :])
            if chunk * CHUNK + CHUNK <= context:
                end = tl.sum(tl.where(row == CHUNK - 1, total, 0.0), 0)
                left = (k.to(tl.float32) * tl.exp(end - total)[:, None]).to(dtype)
                s = tl.dot(tl.trans(left), u, s * tl.exp(end), input_precision="ieee")
        if context // CHUNK > before // CHUNK:
            tl.store(place, s, k_in[:, None] & v_in[None, :])


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
    config: Config,
) -> Tensor:
    """See `ops.OptionalOps.gated_delta_rule`; rows past the true token count are undefined."""
    _, heads, dk, dv = state.shape
    part, seqs = min(next_power(dv, 16), _PART), len(batch.context_lens)
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
        "KPAD": next_power(dk, 16),
        "DV": dv,
        "PART": part,
        "CHUNK": CHUNK,
    }
    config.launch(delta_kernel, (seqs, heads, -(-dv // part)), args, 128 // config.lanes, 1)
    kept = {"pending": pending, "first": qkv, "second": decay, "third": strength, **lens}
    skip = num_k_heads * dk
    sizes = {"WIDTH": qkv.shape[1], "SKIP": skip, "FIRST": skip + heads * dv, "SECOND": heads, "THIRD": heads}
    config.launch(keep_kernel, (seqs, CHUNK), {**kept, **sizes, "CHUNK": CHUNK, "BLOCK": 1024}, 4, 1)
    return out
