"""Triton form of `causal_conv1d`: every token separately, then the last inputs of each sequence are stored in the
pool."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.ops import Batch
from headrace.kernels.tritonlib.device import jit
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["causal_conv1d", "conv_kernel", "conv_state_kernel"]

Tensor = torch.Tensor
_BLOCK = 256
"""Channels per program."""


@jit
def load_input(
    x: tensor, state: tensor, start: tensor, index: tensor, before: tensor, slot: tensor, dim: tensor,
    DIM: tl.constexpr, TAPS: tl.constexpr,
) -> tensor:  # fmt: skip
    """The float32 input of token `index` of this call. Negative: of earlier calls. Zeros before the sequence."""
    new = tl.load(x + (start + index) * DIM + dim, dim < tl.where(index >= 0, DIM, 0), 0.0).to(tl.float32)
    kept = state + (slot * (TAPS - 1) + index + TAPS - 1) * DIM + dim
    old = tl.load(kept, dim < tl.where((index < 0) & (before + index >= 0), DIM, 0), 0.0).to(tl.float32)
    return new + old


@jit
def conv_kernel(
    x: tensor, weight: tensor, bias: tensor, out: tensor, state: tensor, sizes: tensor, token_seq: tensor,
    query_start: tensor, positions: tensor, slots: tensor, SILU: tl.constexpr, DIM: tl.constexpr, TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per token and block of channels."""
    # Grid (tokens, blocks of BLOCK channels). `x` and `out` are [T, DIM], `weight` [DIM, TAPS], `state`
    # [slots, TAPS - 1, DIM]: the last inputs of a sequence, oldest first. A program adds the TAPS inputs up to its
    # token, oldest first, each times its weight. An input before this call's first token is read from `state`, one
    # before the sequence counts as zero (`load_input`), so splitting a prompt changes no bit. Channels are independent:
    # the tile is a vector of channels. Only conv_state_kernel writes `state`, in a separate launch after this one has
    # read it.
    token = tl.program_id(0)
    if token < tl.load(sizes):
        seq = tl.load(token_seq + token)
        start = tl.load(query_start + seq).to(tl.int64)
        local = token - start
        before, slot = tl.load(positions + token) - local, tl.load(slots + seq).to(tl.int64)
        dim = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = dim < DIM
        total = tl.zeros([BLOCK], tl.float32)
        if bias is not None:
            total = tl.load(bias + dim, inside, 0.0).to(tl.float32)
        for tap in tl.static_range(TAPS):
            value = load_input(x, state, start, local - (TAPS - 1) + tap, before, slot, dim, DIM, TAPS)
            total += value * tl.load(weight + dim * TAPS + tap, inside, 0.0).to(tl.float32)
        if SILU:
            total = total / (1.0 + tl.exp(-total))
        tl.store(out + token.to(tl.int64) * DIM + dim, total.to(out.dtype.element_ty), inside)


@jit
def conv_state_kernel(
    x: tensor, state: tensor, query_start: tensor, context_lens: tensor, slots: tensor, DIM: tl.constexpr,
    TAPS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per sequence and block of channels. A row is read from a later row or from x, so ascending order is
    safe."""
    seq = tl.program_id(0)
    start = tl.load(query_start + seq).to(tl.int64)
    count = tl.load(query_start + seq + 1) - start
    if count > 0:
        before, slot = tl.load(context_lens + seq) - count, tl.load(slots + seq).to(tl.int64)
        dim = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = dim < DIM
        for row in tl.static_range(TAPS - 1):
            value = load_input(x, state, start, count - (TAPS - 1) + row, before, slot, dim, DIM, TAPS)
            tl.store(state + (slot * (TAPS - 1) + row) * DIM + dim, value.to(state.dtype.element_ty), inside)


def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, batch: Batch, state: Tensor, *, config: LaunchConfig
) -> Tensor:
    """See `ops.OptionalOps.causal_conv1d`; rows past the true token count are undefined."""
    x = x.contiguous()
    out, blocks = torch.empty_like(x), -(-x.shape[1] // _BLOCK)
    shared: dict[str, Any] = {
        "x": x,
        "state": state,
        "query_start": batch.query_start,
        "slots": batch.slots,
        "DIM": x.shape[1],
        "TAPS": weight.shape[1],
        "BLOCK": _BLOCK,
    }
    more = {"weight": weight.contiguous(), "bias": bias, "out": out, "SILU": silu}
    places = {"sizes": batch.sizes, "token_seq": batch.token_seq, "positions": batch.positions}
    config.launch(conv_kernel, (len(x), blocks), {**shared, **more, **places}, 4, 1)
    lens = {"context_lens": batch.context_lens}
    config.launch(conv_state_kernel, (len(batch.context_lens), blocks), {**shared, **lens}, 4, 1)
    return out
