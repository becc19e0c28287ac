"""`gated_activation` for compilers of complete steps."""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["gated_activation"]


def gated_activation(x: torch.Tensor, kind: str) -> torch.Tensor:
    """[T, F] of [T, 2F] in x's dtype: act(x[:, :F]) * x[:, F:] in float32; kind is `silu`, `gelu` or `gelu_tanh`."""
    gate, up = x.float().chunk(2, dim=-1)
    if kind == "silu":
        active = functional.silu(gate)
    else:
        active = functional.gelu(gate, approximate="tanh" if kind == "gelu_tanh" else "none")
    return (active * up).to(x.dtype)
