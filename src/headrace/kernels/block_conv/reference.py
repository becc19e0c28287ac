"""Reference of `block_conv`."""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["block_conv"]

Tensor = torch.Tensor


def block_conv(x: Tensor, kernel: Tensor, base: Tensor, side: int, rows: int) -> Tensor:
    """[T, H] in x's dtype; see `ops.OptionalOps.block_conv`. The taps are added in order, the row's own first."""
    taps, hidden = base.shape
    groups = kernel.shape[1] // (2 * taps)
    own = kernel[:, side * taps * groups : (side + 1) * taps * groups].float().view(len(x), taps, groups)
    weight = base.float() + own.repeat_interleave(hidden // groups, dim=2)
    place, wide = torch.arange(len(x), device=x.device) % rows, x.float()
    total = wide * weight[:, 0]
    for tap in range(1, taps):
        before = functional.pad(wide, (0, 0, tap, 0))[: len(x)]
        total = total + torch.where((place >= tap).unsqueeze(1), before * weight[:, tap], 0.0)
    return total.to(x.dtype)
