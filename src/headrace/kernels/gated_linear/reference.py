"""Reference of `gated_linear`."""

from __future__ import annotations

import torch

from headrace.kernels.gated_activation.reference import gated_activation
from headrace.kernels.linear.reference import linear
from headrace.kernels.weight import Weight

__all__ = ["gated_linear"]


def gated_linear(x: torch.Tensor, weight: Weight, kind: str) -> torch.Tensor:
    """[T, F] in x's dtype of x [T, K] and a weight [2F, K]: `gated_activation(linear(x, weight), kind)`."""
    return gated_activation(linear(x, weight), kind)
