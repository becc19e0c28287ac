"""Reference of `scatter_blocks`."""

from __future__ import annotations

import torch

from headrace.kernels.gather_blocks.reference import stores
from headrace.kernels.kv import TorchKV

__all__ = ["scatter_blocks"]

Tensor = torch.Tensor


def scatter_blocks(kv: TorchKV, ids: Tensor, packed: Tensor) -> Tensor:
    """Writes uint8 [N, bytes], as `gather_blocks` gives them, to the blocks ids [N]; returns ids. Ids are distinct,
    except 0, which is padding."""
    index, start = ids.long(), 0
    for lists, at in stores(kv):
        cells = lists[at].view(torch.uint8)
        size = cells[0].numel()
        cells[index] = packed[:, start : start + size].reshape(-1, *cells.shape[1:])
        start += size
    return ids
