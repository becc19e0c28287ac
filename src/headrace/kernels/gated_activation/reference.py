"""Reference of `gated_activation`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from headrace.kernels.row_arithmetic import elementwise

__all__ = ["gated_activation"]

_KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


def gated_activation(x: torch.Tensor, kind: str) -> torch.Tensor:
    """[T, F] of [T, 2F] in x's dtype: act(x[:, :F]) * x[:, F:] in float32; kind is `silu`, `gelu` or `gelu_tanh`."""
    gate, up = x.float().chunk(2, dim=-1)
    return (elementwise(_KINDS[kind], gate) * up).to(x.dtype)
