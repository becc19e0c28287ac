"""The tensors of `kv.TorchKV` in the types that kernels accept."""

from __future__ import annotations

import torch

__all__ = ["stored", "stored_scales"]


def stored(store: list[torch.Tensor], layer: int) -> torch.Tensor:
    """One layer's keys or values; E4M3 as bytes, because not every chip supports the type."""
    tensor = store[layer]
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor


def stored_scales(scales: list[torch.Tensor], layer: int) -> torch.Tensor | None:
    """One layer's scales; None if the cache is not quantized."""
    return scales[layer] if scales else None
