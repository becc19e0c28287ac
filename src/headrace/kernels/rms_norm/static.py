"""`rms_norm` and `add_rms_norm` for compilers of complete steps: single expressions that they fuse."""

from __future__ import annotations

import torch

__all__ = ["add_rms_norm", "rms_norm"]

Tensor = torch.Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[..., D] in x's dtype: x * (1 / sqrt(mean(x^2) + eps)) * weight, in float32."""
    wide = x.float()
    mean = (wide * wide).mean(-1, keepdim=True)
    return (wide * (1 / torch.sqrt(mean + eps)) * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual); the norm is that of the sum rounded to residual's dtype."""
    total = (x.float() + residual.float()).to(residual.dtype)
    return rms_norm(total, weight, eps).to(x.dtype), total
