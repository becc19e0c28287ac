"""top-k, min-p and top-p, in this order, on one row."""

from __future__ import annotations

import torch

from headrace.kernels.row_arithmetic import elementwise
from headrace.kernels.sample.order import keys, token_of

__all__ = ["truncate"]

Tensor = torch.Tensor


def truncate(scaled: Tensor, top_k: int, min_p: float, top_p: float) -> Tensor:
    """float32 [V] with -inf for removed tokens; `scaled` is (logit - largest) / temperature, so its largest is 0.

    Tokens are ordered by score, ties by the lower id. top_k keeps the first k (0: all). With e = exp(scaled), min_p
    keeps e >= min_p (the largest e is 1). top_p < 1 keeps a token of those left where the sum of e before it, in this
    order and in float64, is less than top_p times the sum of all of them. The first token is always kept.
    """
    vocab = len(scaled)
    if 0 < top_k < vocab or top_p < 1:
        ranked = keys(scaled).topk(top_k if 0 < top_k < vocab else vocab).values
        tokens = token_of(ranked)
    elif min_p > 0:
        tokens = torch.arange(vocab, device=scaled.device)
    else:
        return scaled
    weight = elementwise(torch.exp, scaled[tokens])
    kept = weight >= min_p
    if top_p < 1:
        sums = torch.where(kept, weight, 0.0).double().cumsum(0)
        kept &= sums - weight.double() < top_p * sums[-1]
        kept[0] = True
    out = torch.full_like(scaled, -torch.inf)
    return out.index_put((tokens[kept],), scaled[tokens[kept]])
