"""Triton form of `rms_norm`, and of `add_rms_norm`, which differs by one addition. One program per row."""

from __future__ import annotations

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.tritonlib.device import jit, next_power
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["launch_norm", "norm_kernel", "rms_norm"]

Tensor = torch.Tensor


@jit
def norm_kernel(
    x: tensor, residual: tensor, weight: tensor, out: tensor, total: tensor, width: int, eps: float, BLOCK: tl.constexpr
) -> None:
    """[rows, width], contiguous; `residual` and `total` are both None for the plain norm."""
    base = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + base + column, inside, 0.0).to(tl.float32)
    if residual is not None:
        value += tl.load(residual + base + column, inside, 0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + base + column, rounded, inside)
        value = rounded.to(tl.float32)
    mean = tl.sum(value * value, 0) / width
    scale = tl.load(weight + column, inside, 0.0).to(tl.float32)
    normed = value / tl.sqrt(mean + eps) * scale
    tl.store(out + base + column, normed.to(out.dtype.element_ty), inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, config: LaunchConfig) -> Tensor:
    """See `ops.Ops.rms_norm`."""
    return launch_norm(config, x, None, weight, eps)[0]


def launch_norm(
    config: LaunchConfig, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor | None]:
    """(normalized rows in x's type, sum in residual's type or None)."""
    x = x.contiguous()
    out, block = torch.empty_like(x), next_power(x.shape[1], 16)
    total = None if residual is None else torch.empty_like(residual, memory_format=torch.contiguous_format)
    args = {
        "x": x,
        "residual": None if residual is None else residual.contiguous(),
        "weight": weight,
        "out": out,
        "total": total,
        "width": x.shape[1],
        "eps": eps,
        "BLOCK": block,
    }
    config.launch(norm_kernel, (x.shape[0],), args, min(max(block // 512, 1), 16), 1)
    return out, total
