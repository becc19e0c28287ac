"""Orders tokens by score, ties by the lower id: one int64 key per token, all keys distinct."""

from __future__ import annotations

import torch

__all__ = ["finite", "is_finite", "keys", "token_of"]

Tensor = torch.Tensor
_LOW = 0xFFFFFFFF


def finite(logits: Tensor) -> Tensor:
    """Clean float32 logits: NaN counts as -inf, +inf as the largest float, and a row without a finite logit as
    zeros."""
    clean = logits.float().nan_to_num(nan=-torch.inf, posinf=torch.finfo(torch.float32).max, neginf=-torch.inf)
    return torch.where(clean.amax(-1, keepdim=True) == -torch.inf, 0.0, clean)


def is_finite(logits: Tensor) -> Tensor:
    """Whether each row has no NaN, no +inf, and a value that is not -inf; bool [R]."""
    wide = logits.float()
    return (wide < torch.inf).all(-1) & (wide > -torch.inf).any(-1)


def keys(scores: Tensor) -> Tensor:
    """Keys, int64 [R, V], larger is better: the float's bits as an ordered integer, then 2^32 - 1 - token id."""
    bits = (scores + 0.0).contiguous().view(torch.int32)  # -0 becomes +0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    return ordered * (_LOW + 1) + (_LOW - torch.arange(scores.shape[-1], device=scores.device))


def token_of(key: Tensor) -> Tensor:
    """The token ids of keys, int64."""
    return _LOW - (key & _LOW)
