"""Reference of `sample`."""

from __future__ import annotations

import torch

from headrace.kernels.ops import Batch, SampleInputs, SampleOutputs
from headrace.kernels.sample.constrain import constrain
from headrace.kernels.sample.order import finite, is_finite
from headrace.kernels.sample.philox import gumbel
from headrace.kernels.sample.scores import scores
from headrace.kernels.sample.truncate import truncate
from headrace.types import NO_CHOICE, NO_TOKEN, NOT_FINITE

__all__ = ["GREEDY_BELOW", "sample"]

Tensor = torch.Tensor
GREEDY_BELOW = 1e-5
"""Temperatures below this count as 0: only the largest logit would remain."""


def sample(logits: Tensor, inputs: SampleInputs, batch: Batch, num_logprobs: int) -> SampleOutputs:
    """Choose one token per row and write it to history[slot, position]; scored rows get NO_TOKEN and write nothing.

    Bias, mask and penalties; then at a temperature the token with the largest (logit - largest) / temperature + Gumbel
    noise (`philox.gumbel`) among those that top-k, min-p and top-p keep: that is a draw from their softmax. Ties go to
    the lower id. Rows without a token get NO_CHOICE or NOT_FINITE and write nothing; in their scores NaN counts as
    -inf.
    """
    count, padded = int(batch.sizes[2]), len(logits)
    raw = finite(logits[:count])
    target = inputs.target[:count].long()
    broken = ~is_finite(logits[:count])
    token = torch.where(broken, NOT_FINITE, torch.where(target == NO_TOKEN, _choose(raw, inputs, count), target))
    sampled = (target == NO_TOKEN) & (token >= 0) & (inputs.position[:count] < inputs.history.shape[1])
    slot, position = inputs.slot[:count][sampled].long(), inputs.position[:count][sampled].long()
    inputs.history[slot, position] = token[sampled].int()

    def full(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(padded - count, *x.shape[1:])])

    tokens = full(torch.where((target == NO_TOKEN) | broken, token, NO_TOKEN).int())
    token = torch.where(target == NO_TOKEN, token, target).clamp(min=0)
    if num_logprobs < 0 or not count:
        empty = raw.new_zeros(padded, max(num_logprobs, 0))
        return SampleOutputs(tokens, raw.new_zeros(padded), tokens.new_zeros(padded), empty.int(), empty)
    return SampleOutputs(tokens, *(full(part) for part in scores(raw, token, num_logprobs)))


def _choose(raw: Tensor, inputs: SampleInputs, count: int) -> Tensor:
    """The chosen tokens, int64 [R]."""
    logits = constrain(raw, inputs, count)
    peak = logits.amax(-1, keepdim=True)
    left = peak[:, 0] > -torch.inf
    choice = torch.where(left, logits.argmax(-1), NO_CHOICE)
    warm = (inputs.temperature >= GREEDY_BELOW) & (inputs.target == NO_TOKEN)
    rows = (warm[:count] & left).nonzero()[:, 0]
    if not len(rows):
        return choice
    scaled = (logits[rows] - peak[rows]) / inputs.temperature[rows].float().unsqueeze(-1)
    limits = zip(*(x[rows].tolist() for x in (inputs.top_k, inputs.min_p, inputs.top_p)), strict=True)
    kept = torch.stack([truncate(row, *limit) for row, limit in zip(scaled, limits, strict=True)])
    choice[rows] = (kept + gumbel(inputs.seed[rows], inputs.position[rows], raw.shape[-1])).argmax(-1)
    return choice
