"""Triton form of `gated_activation`."""

from __future__ import annotations

import torch
import triton.language as tl
from triton.language import tensor

from headrace.errors import PlatformError
from headrace.kernels.tritonlib.device import jit, tanh
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["activate", "gate_kernel", "gated_activation"]

_KINDS = ("silu", "gelu", "gelu_tanh")
_BLOCK = 1024


@jit
def activate(gate: tensor, KIND: tl.constexpr) -> tensor:
    """The activation `KIND` of `gate`; float32 in and out."""
    if KIND == "silu":
        return gate / (1.0 + tl.exp(-gate))
    if KIND == "gelu":
        return 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    return 0.5 * gate * (1.0 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)))


@jit
def gate_kernel(x: tensor, out: tensor, width: int, KIND: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """[rows, 2 width] to [rows, width], contiguous; one program per row and BLOCK columns."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(x + 2 * row * width + column, inside, 0.0).to(tl.float32)
    up = tl.load(x + (2 * row + 1) * width + column, inside, 0.0).to(tl.float32)
    act = activate(gate, KIND)
    tl.store(out + row * width + column, (act * up).to(out.dtype.element_ty), inside)


def gated_activation(x: torch.Tensor, kind: str, *, config: LaunchConfig) -> torch.Tensor:
    """See `ops.Ops.gated_activation`. Raises PlatformError for a kind that is not one of three."""
    if kind not in _KINDS:
        raise PlatformError(f"gated_activation: kind {kind!r}: choose one of {', '.join(_KINDS)}")
    x = x.contiguous()
    rows, width = x.shape[0], x.shape[1] // 2
    out = x.new_empty(rows, width)
    args = {"x": x, "out": out, "width": width, "KIND": kind, "BLOCK": _BLOCK}
    config.launch(gate_kernel, (rows, -(-width // _BLOCK)), args, 4, 1)
    return out
