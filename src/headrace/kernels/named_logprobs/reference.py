"""Reference of `named_logprobs`; compilers of complete steps use it too, so nothing here depends on a value."""

from __future__ import annotations

import torch

__all__ = ["named_logprobs"]

Tensor = torch.Tensor


def named_logprobs(logits: Tensor, named: Tensor, top_logprobs: Tensor) -> Tensor:
    """float32 [R, N]: the logprobs of the tokens `named` [R, N]; 0 where that is negative.

    The logprob of a row's most likely token, `top_logprobs[:, 0]`, is minus the logarithm of the row's sum of
    exp(logit - largest). So logit - largest, plus that, has the bits that `sample` gives the same token.
    """
    if not len(logits):
        return logits.new_zeros(named.shape, dtype=torch.float32)
    wide = logits.float()
    # NaN counts as -inf and +inf as the largest float, as in `sample`.
    clean = torch.where(torch.isnan(wide), -torch.inf, wide.clamp(max=torch.finfo(torch.float32).max))
    shifted = clean.gather(-1, named.long().clamp(min=0)) - clean.amax(-1, keepdim=True)
    return torch.where(named >= 0, shifted + top_logprobs[:, :1], 0.0)
