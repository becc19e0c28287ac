"""Two operators of the device's own. Keyword names are the contract: `headrace/kernels/ops.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from headrace.kernels.linear.activation import quantize_activation
from headrace.kernels.weight import Weight

__all__ = ["OPERATORS", "linear", "rms_norm"]

_KEY = "example"


class _RMSNorm:
    """In Python, out of torch's operators."""

    tag = "example"

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)


class _Linear:
    """On the device's kernel, from a float32 matrix that is laid out once at load."""

    tag = "example-c++"

    def pack(self, weight: Weight) -> None:
        for part in weight.parts or (weight,):
            part.prepared[_KEY] = part.dequantize().float().contiguous()

    def __call__(self, x: torch.Tensor, weight: Weight) -> torch.Tensor:
        return self._product(x, weight).to(x.dtype)

    def _product(self, x: torch.Tensor, weight: Weight) -> torch.Tensor:
        if weight.parts:
            out = torch.cat([self._product(x, part) for part in weight.parts], 1)
        else:
            rounded = quantize_activation(x, weight).float()
            out = torch.ops.headrace_example.matmul(rounded, weight.prepared[_KEY])
        return out if weight.bias is None else out + weight.bias


rms_norm, linear = _RMSNorm(), _Linear()
OPERATORS: dict[str, Callable[..., Any]] = {"rms_norm": rms_norm, "linear": linear}
"""What is missing is served by reference."""
