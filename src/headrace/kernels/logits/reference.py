"""Reference of `logits`."""

from __future__ import annotations

import torch

from headrace.kernels.linear.reference import product
from headrace.kernels.ops import Batch
from headrace.kernels.row_arithmetic import elementwise
from headrace.kernels.weight import Weight

__all__ = ["logits", "soft_capped"]


def logits(x: torch.Tensor, batch: Batch, head: Weight, soft_cap: float | None) -> torch.Tensor:
    """float32 [R, V]: rows of x times the head; soft_cap c gives c tanh(y / c)."""
    return soft_capped(product(x[batch.rows.long()], head), soft_cap)


def soft_capped(x: torch.Tensor, cap: float | None) -> torch.Tensor:
    """c tanh(x / c) for a cap c; x itself if there is none."""
    return x if cap is None else elementwise(torch.tanh, x / cap) * cap
