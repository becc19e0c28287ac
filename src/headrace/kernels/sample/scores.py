"""Logprobs, ranks and alternatives under the raw logits."""

from __future__ import annotations

import torch

from headrace.kernels.row_arithmetic import elementwise, tree_sum
from headrace.kernels.sample.order import keys, token_of

__all__ = ["scores"]

Tensor = torch.Tensor


def scores(logits: Tensor, tokens: Tensor, alternatives: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(logprob [R], rank [R], ids [R, K], logprobs [R, K]) of `tokens` [R] and of the K most likely, ties to the lower
    id.

    logprob = (logit - largest) - log(sum of exp(logit - largest)), the sum by halves; rank = 1 + tokens with a higher
    logit.
    """
    shifted = logits - logits.amax(-1, keepdim=True)
    total = elementwise(torch.log, tree_sum(elementwise(torch.exp, shifted))).unsqueeze(-1)
    index = tokens.long().clamp(min=0).unsqueeze(-1)
    ranks = 1 + (logits > logits.gather(-1, index)).sum(-1)
    count = min(alternatives, logits.shape[-1])
    top = token_of(keys(logits).topk(count).values)
    logprobs = (shifted.gather(-1, index) - total).squeeze(-1)
    return logprobs, ranks.int(), top.int(), shifted.gather(-1, top) - total
