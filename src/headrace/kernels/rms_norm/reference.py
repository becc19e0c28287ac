"""Reference of `rms_norm`."""

from __future__ import annotations

import torch

from headrace.kernels.row_arithmetic import root, tree_sum

__all__ = ["rms_norm"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """[T, D] in x's dtype: x * (1 / sqrt(mean(x^2) + eps)) * weight, computed in float32; `tree_sum` adds the
    squares."""
    wide = x.float()
    mean = tree_sum(wide * wide) / x.shape[-1]
    return (wide * (1 / root(mean + eps)).unsqueeze(-1) * weight.float()).to(x.dtype)
