"""Reference of `causal_conv1d`."""

from __future__ import annotations

import torch
from torch.nn import functional

from headrace.kernels.ops import Batch
from headrace.kernels.row_arithmetic import elementwise

__all__ = ["causal_conv1d"]

Tensor = torch.Tensor


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, batch: Batch, state: Tensor) -> Tensor:
    """[T, D] in x's dtype. The taps are added in ascending order, beginning with the oldest input."""
    tokens, seqs, taps = int(batch.sizes[0]), int(batch.sizes[1]), weight.shape[1]
    start, seq = batch.query_start[: seqs + 1].long(), batch.token_seq[:tokens].long()
    slots, fresh, kernel = batch.slots[:seqs].long(), x[:tokens].float(), weight.float()
    before = batch.context_lens[:seqs].long() - (start[1:] - start[:-1])

    def inputs(sequence: Tensor, index: Tensor) -> Tensor:
        """The inputs of tokens `index` of this call, […, D]. Negative: of earlier calls. Zeros before the sequence."""
        old = state[slots[sequence], (index + taps - 1).clamp(0, taps - 2)].float()
        old = torch.where((before[sequence] + index < 0).unsqueeze(-1), 0.0, old)
        here = (start[sequence] + index).clamp(0, max(tokens - 1, 0))
        return torch.where((index < 0).unsqueeze(-1), old, fresh[here])

    local = torch.arange(tokens, device=x.device) - start[seq]
    total = fresh.new_zeros(fresh.shape) if bias is None else bias.float().expand(fresh.shape)
    for tap in range(taps):
        total = total + inputs(seq, local - (taps - 1) + tap) * kernel[:, tap]
    live = (start[1:] > start[:-1]).nonzero()[:, 0]
    last = (start[1:] - start[:-1])[live, None] - (taps - 1) + torch.arange(taps - 1, device=x.device)
    if len(live):
        state[slots[live]] = inputs(live[:, None].expand(last.shape), last).to(state.dtype)
    result = torch.zeros_like(x)
    result[:tokens] = (elementwise(functional.silu, total) if silu else total).to(x.dtype)
    return result
