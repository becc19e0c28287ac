"""Triton form of `logits`: the product of `linear` on the requested rows, in float32."""

from __future__ import annotations

import torch

from headrace.kernels.linear.triton import product
from headrace.kernels.ops import Batch
from headrace.kernels.tritonlib.launch_config import LaunchConfig
from headrace.kernels.weight import Weight

__all__ = ["logits"]


def logits(
    x: torch.Tensor, batch: Batch, head: Weight, soft_cap: float | None, *, config: LaunchConfig
) -> torch.Tensor:
    """See `ops.Ops.logits`."""
    return product(x, head, batch.rows, soft_cap, torch.float32, config)
