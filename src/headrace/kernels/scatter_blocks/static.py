"""`scatter_blocks` for compilers of complete steps: the cache's tensors are replaced, not written."""

from __future__ import annotations

import torch

from headrace.kernels.gather_blocks.reference import stores
from headrace.kernels.kv import TorchKV

__all__ = ["scatter_blocks"]

Tensor = torch.Tensor


def scatter_blocks(kv: TorchKV, ids: Tensor, packed: Tensor) -> Tensor:
    """Writes uint8 [N, bytes] to the blocks ids [N], padding to block 0; returns ids."""
    index, start = ids.long(), 0
    for lists, at in stores(kv):
        held = lists[at]
        shape = held.shape[1:]
        size = shape.numel() * held.element_size()
        rows = packed[:, start : start + size].contiguous().view(held.dtype).reshape(-1, *shape)
        lists[at] = torch.ops.aten.index_put(held, [index], rows)
        start += size
    return ids
