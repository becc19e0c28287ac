"""Triton form of `mamba2_scan`: chunk by chunk with matrix products, for decodes and prompts.

With G the running sum of dt a within a chunk, y_i = e^(G_i) h c_i + sum over j <= i of e^(G_i - G_j) (c_i b_j) dt_j x_j
(the dual form of arXiv:2405.21060), and the state h is that after the chunk's last token. Row i uses only rows up to i,
and tokens that are not computed yet count as zeros. So the rows of an unfinished chunk have the same bits as in the
full chunk.
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

__all__ = ["mamba2_scan", "ssd_kernel"]

Tensor = torch.Tensor


@jit
def softplus(x: tensor) -> tensor:
    """log(1 + e^x) in float32; x itself above 20, like torch."""
    small = tl.exp(tl.minimum(x, 20.0))
    whole = 1.0 + small
    # The factor corrects the rounding error of the sum with 1.
    exact = tl.where(whole == 1.0, small, tl.log(whole) * small / tl.where(whole == 1.0, 1.0, whole - 1.0))
    return tl.where(x > 20.0, x, exact)


@jit
def ssd_kernel(
    xbc: tensor, dt: tensor, a: tensor, d: tensor, dt_bias: tensor, out: tensor, state: tensor, pending: tensor,
    query_start: tensor, context_lens: tensor, slots: tensor, low: float, high: float, GROUPS: tl.constexpr,
    HEADS: tl.constexpr, SIZE: tl.constexpr, N: tl.constexpr, PART: tl.constexpr, PIECE: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per sequence, head and PART rows of its state.

    The state stays in memory and is read PIECE columns at a time. `pending` is read here and written later by
    keep_kernel.
    """
    # Grid (sequences, heads, parts of PART rows). `xbc` is [T, HEADS SIZE + 2 GROUPS N]: x, b, c. `state` is
    # [slots, HEADS, SIZE, N] in float32, `pending` [slots, CHUNK, KEPT]: x, b and dt of an unfinished chunk. The rows
    # of a state are independent, so each program owns PART of them; it computes the product that all rows share
    # (C B^T) itself.
    # The program walks the chunks in order, from the one that holds its first new token. Rows of that chunk from
    # earlier calls are read from `pending`, the others from `xbc` (`load_rows`): every chunk is computed completely, at
    # absolute positions. In a chunk it walks N in pieces of PIECE columns for the products with b, c and the old state,
    # stores the outputs of new tokens, and walks N again only for a full chunk, to update the state. The state stays in
    # memory, because the products need the registers. In chunk 0 it counts as zeros and is not read, so that slots need
    # not be cleared.
    WIDTH: tl.constexpr = HEADS * SIZE + 2 * GROUPS * N
    KEPT: tl.constexpr = HEADS * SIZE + GROUPS * N + HEADS
    seq, head = tl.program_id(0), tl.program_id(1)
    start, context = tl.load(query_start + seq).to(tl.int64), tl.load(context_lens + seq)
    before = context - (tl.load(query_start + seq + 1) - start).to(tl.int32)
    if before < context:
        slot = tl.load(slots + seq).to(tl.int64)
        own = pending + slot * CHUNK * KEPT
        b_at = HEADS * SIZE + head // (HEADS // GROUPS) * N
        pd, row = tl.program_id(2) * PART + tl.arange(0, PART), tl.arange(0, CHUNK)
        p_in, upto = pd < SIZE, row[:, None] >= row[None, :]
        h = state + ((slot * HEADS + head) * SIZE + pd[:, None]) * N
        slope, shift = tl.load(a + head).to(tl.float32), 0.0
        if dt_bias is not None:
            shift = tl.load(dt_bias + head).to(tl.float32)
        for chunk in range(before // CHUNK, (context + CHUNK - 1) // CHUNK):
            token, fresh, old = rows_of(chunk, before, context, start, CHUNK)
            cb, seen = tl.zeros([CHUNK, CHUNK], tl.float32), tl.zeros([CHUNK, PART], tl.float32)
            live = tl.where(chunk > 0, N, 0)
            for first in range(0, N, PIECE):
                nd = first + tl.arange(0, PIECE)
                b = load_rows(xbc, own, token, b_at, row, fresh, old, nd, nd < N, WIDTH, 0, KEPT)
                c_at = xbc + token[:, None] * WIDTH + b_at + GROUPS * N + nd[None, :]
                c = tl.load(c_at, fresh[:, None] & (nd < N)[None, :], 0.0)
                part = tl.load(h + nd[None, :], p_in[:, None] & (nd < live)[None, :], 0.0).to(c.dtype)
                cb = tl.dot(c, tl.trans(b), cb, input_precision="ieee")
                seen = tl.dot(c, tl.trans(part), seen, input_precision="ieee")
            x = load_rows(xbc, own, token, head * SIZE, row, fresh, old, pd, p_in, WIDTH, 0, KEPT)
            raw = load_gate(dt, own, token, head, row, fresh, old, HEADS, KEPT - HEADS, KEPT)
            rate = tl.minimum(tl.maximum(softplus(raw + shift), low), high)
            rate = tl.where(fresh | old, rate, 0.0)
            total = tl.cumsum(rate * slope, 0)
            between = tl.exp(tl.where(upto, total[:, None] - total[None, :], 0.0))
            wide = x.to(tl.float32)
            fed = wide * rate[:, None]
            mix = tl.where(upto, cb * between, 0.0).to(x.dtype)
            result = tl.dot(mix, fed.to(x.dtype), seen * tl.exp(total)[:, None], input_precision="ieee")
            if d is not None:
                result += wide * tl.load(d + head).to(tl.float32)
            target = out + (token[:, None] * HEADS + head) * SIZE + pd[None, :]
            tl.store(target, result.to(out.dtype.element_ty), fresh[:, None] & p_in[None, :])
            if chunk * CHUNK + CHUNK <= context:
                end = tl.sum(tl.where(row == CHUNK - 1, total, 0.0), 0)
                left = tl.trans((fed * tl.exp(end - total)[:, None]).to(x.dtype))
                for first in range(0, N, PIECE):
                    nd = first + tl.arange(0, PIECE)
                    b = load_rows(xbc, own, token, b_at, row, fresh, old, nd, nd < N, WIDTH, 0, KEPT)
                    part = tl.load(h + nd[None, :], p_in[:, None] & (nd < live)[None, :], 0.0)
                    part = tl.dot(left, b, part * tl.exp(end), input_precision="ieee")
                    tl.store(h + nd[None, :], part, p_in[:, None] & (nd < N)[None, :])
                tl.debug_barrier()  # other threads read it in the next chunk


def mamba2_scan(
    xbc: Tensor,
    dt: Tensor,
    a: Tensor,
    d: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    batch: Batch,
    state: Tensor,
    pending: Tensor,
    num_groups: int,
    *,
    config: LaunchConfig,
) -> Tensor:
    """See `ops.OptionalOps.mamba2_scan`; rows past the true token count are undefined."""
    _, heads, size, n = state.shape
    part, piece, warps = part_of(size, n, xbc.dtype == torch.float32, config)
    seqs = len(batch.context_lens)
    xbc, dt = xbc.contiguous(), dt.contiguous()
    out = xbc.new_empty(len(xbc), heads * size)
    lens = {"query_start": batch.query_start, "context_lens": batch.context_lens, "slots": batch.slots}
    args: dict[str, Any] = {
        **lens,
        "xbc": xbc,
        "dt": dt,
        "a": a,
        "d": d,
        "dt_bias": dt_bias,
        "out": out,
        "state": state,
        "pending": pending,
        "low": dt_limit[0],
        "high": dt_limit[1],
        "GROUPS": num_groups,
        "HEADS": heads,
        "SIZE": size,
        "N": n,
        "PART": part,
        "PIECE": piece,
        "CHUNK": CHUNK,
    }
    config.launch(ssd_kernel, (seqs, heads, -(-size // part)), args, warps, 1)
    kept = {"pending": pending, "first": xbc, "second": dt, "third": None, **lens}
    sizes = {"WIDTH": xbc.shape[1], "SKIP": 0, "FIRST": heads * size + num_groups * n, "SECOND": heads, "THIRD": 0}
    config.launch(keep_kernel, (seqs, CHUNK), {**kept, **sizes, "CHUNK": CHUNK, "BLOCK": 1024}, 4, 1)
    return out
