"""Reference of `add_rms_norm`."""

from __future__ import annotations

import torch

from headrace.kernels.rms_norm.reference import rms_norm

__all__ = ["add_rms_norm"]


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual); the norm is that of the sum rounded to residual's dtype."""
    total = (x.float() + residual.float()).to(residual.dtype)
    return rms_norm(total, weight, eps).to(x.dtype), total
