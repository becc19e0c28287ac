"""Reference of `gather_blocks`."""

from __future__ import annotations

import torch

from headrace.kernels.kv import TorchKV

__all__ = ["gather_blocks", "stores"]

Tensor = torch.Tensor


def gather_blocks(kv: TorchKV, ids: Tensor) -> Tensor:
    """uint8 [N, bytes] of the blocks ids [N]: of each layer the keys, the values, and their scales if there are any,
    as the cache holds them."""
    index = ids.long()
    # Not every device can index 8-bit floats, but every device can index bytes.
    parts = [lists[at].view(torch.uint8).index_select(0, index).flatten(1) for lists, at in stores(kv)]
    return torch.cat(parts, 1)


def stores(kv: TorchKV) -> list[tuple[list[Tensor], int]]:
    """The tensors of a cache in the order of a block's bytes, each as (list, place in it)."""
    kinds = [lists for lists in (kv.keys, kv.values, kv.key_scales, kv.value_scales) if lists]
    return [(lists, layer) for layer in range(len(kv.keys)) for lists in kinds]
