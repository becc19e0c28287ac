"""Tokens ordered by score with ties to the lower id: one int64 key a token, all keys distinct."""

from __future__ import annotations

import torch

__all__ = ["finite", "is_finite", "keys", "token_of"]

Tensor = torch.Tensor
_LOW = 0xFFFFFFFF


def finite(logits: Tensor) -> Tensor:
    """float32 logits in which NaN counts as -inf and +inf as the largest float; a row without any finite logit counts
    as zeros."""
    clean = logits.float().nan_to_num(nan=-torch.inf, posinf=torch.finfo(torch.float32).max, neginf=-torch.inf)
    return torch.where(clean.amax(-1, keepdim=True) == -torch.inf, 0.0, clean)


def is_finite(logits: Tensor) -> Tensor:
    """bool [R]: no NaN, no +inf, and something that is not -inf."""
    wide = logits.float()
    return (wide < torch.inf).all(-1) & (wide > -torch.inf).any(-1)


def keys(scores: Tensor) -> Tensor:
    """int64 [R, V], larger is better: the float's bits as an ordered integer above 2^32 - 1 - token id."""
    bits = (scores + 0.0).contiguous().view(torch.int32)  # -0 becomes +0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    return ordered * (_LOW + 1) + (_LOW - torch.arange(scores.shape[-1], device=scores.device))


def token_of(key: Tensor) -> Tensor:
    """int64 token ids of keys."""
    return _LOW - (key & _LOW)
