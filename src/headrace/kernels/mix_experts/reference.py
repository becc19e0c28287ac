"""Reference of `mix_experts`."""

from __future__ import annotations

import torch

from headrace.kernels.moe.reference import add_shares, route
from headrace.kernels.moe.routing import Routing

__all__ = ["mix_experts"]

Tensor = torch.Tensor


def mix_experts(outputs: Tensor, router: Tensor, bias: Tensor | None, routing: Routing, ranks: int) -> Tensor:
    """[T, C] in router's dtype; see `ops.OptionalOps.mix_experts`."""
    chosen, shares = route(router, bias, routing)
    owner = ((chosen + 1) * ranks - 1) // router.shape[1]
    blocks = outputs.view(*chosen.shape, ranks, outputs.shape[1] // ranks)
    index = owner[..., None, None].expand(*chosen.shape, 1, blocks.shape[-1])
    return add_shares(blocks.gather(2, index).squeeze(2), shares).to(router.dtype)
