"""Reference of `take_rows`."""

from __future__ import annotations

import torch

from headrace.kernels.ops import Batch

__all__ = ["take_rows"]


def take_rows(x: torch.Tensor, batch: Batch) -> torch.Tensor:
    """[R, D]: the rows `batch.rows` of x [T, D]."""
    return x[batch.rows.long()]
