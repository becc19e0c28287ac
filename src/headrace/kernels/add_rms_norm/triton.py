"""Triton form of `add_rms_norm`."""

from __future__ import annotations

import torch

from headrace.kernels.rms_norm.triton import launch_norm
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["add_rms_norm"]


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *, config: LaunchConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ops.Ops.add_rms_norm`."""
    out, total = launch_norm(config, x, residual, weight, eps)
    assert total is not None
    return out, total
