"""Reference of `linear`, which `logits` shares."""

from __future__ import annotations

import torch

from headrace.kernels.linear.activation import quantize_activation
from headrace.kernels.row_arithmetic import matmul_rows
from headrace.kernels.weight import Weight

__all__ = ["CHUNK", "linear", "product"]

CHUNK = 1 << 22
"""Elements that are dequantized at a time."""


def linear(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """[T, N] in x's dtype: x @ weight^T + bias in float32 on the exact dequantized weight; where the scheme quantizes
    inputs, x is rounded to that format first."""
    return product(x, weight).to(x.dtype)


def product(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """As `linear`, in float32. Weights stay as stored; a chunk of rows at a time is dequantized."""
    if weight.parts:
        out = torch.cat([product(x, part) for part in weight.parts], 1)
    elif weight.scheme == "float32":
        out = matmul_rows(x, weight.dequantize())
    else:
        x = quantize_activation(x, weight)
        rows = max(CHUNK // weight.shape[1] // 16 * 16, 16)
        steps = [weight.take(slice(start, start + rows)) for start in range(0, weight.shape[0], rows)]
        out = torch.cat([matmul_rows(x, step.dequantize())[:, : step.shape[0]] for step in steps], 1)
    out = out[: len(x), : weight.shape[0]]
    return out if weight.bias is None else out + weight.bias
