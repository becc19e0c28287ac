"""Reference of `mla`."""

from __future__ import annotations

import torch

from headrace.kernels.attention.reference import attention
from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch
from headrace.kernels.paged import DTYPES
from headrace.types import KVLayout, LayerKV

__all__ = ["mla"]

Tensor = torch.Tensor


def mla(q: Tensor, batch: Batch, latents: Tensor, scales: Tensor | None, rank: int, scale: float) -> Tensor:
    """[T, Hq R] in q's dtype; see `ops.OptionalOps.mla`.

    A row of the cache is the key of every head, and its first R elements are their value. So this is attention with one
    KV head: its reference computes the result, of which the first R elements per head are used.
    """
    blocks, size, width = latents.shape
    store = next(name for name, dtype in DTYPES.items() if dtype == latents.dtype)
    rows = [latents.view(blocks, 1, size, width)]
    factors = [] if scales is None else [scales.view(blocks, 1, size)]
    kv = TorchKV(KVLayout((LayerKV(1, width),), size, store), rows, rows, factors, factors)
    out = attention(q, batch, kv, 0, scale, None, None, None, None)
    return out.view(len(q), q.shape[1] // width, width)[..., :rank].flatten(1)
