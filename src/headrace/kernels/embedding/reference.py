"""Reference of `embedding`."""

from __future__ import annotations

import torch

from headrace.kernels.weight import Weight

__all__ = ["embedding"]


def embedding(ids: torch.Tensor, table: Weight, scale: float) -> torch.Tensor:
    """float32 [T, D]: rows of the table times scale. Only the rows asked for are dequantised."""
    if table.parts:
        return table.dequantize()[ids.long()] * scale
    return table.take(ids.long()).dequantize() * scale
