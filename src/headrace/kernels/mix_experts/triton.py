"""Triton form of `mix_experts`: the sum of `moe`, each term out of the columns of its expert's rank."""

from __future__ import annotations

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.moe.routing import Routing
from headrace.kernels.moe.triton import COLUMNS
from headrace.kernels.moe.triton_route import choose
from headrace.kernels.tritonlib.device import jit
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["mix_experts", "mix_ranks_kernel"]

Tensor = torch.Tensor


@jit
def mix_ranks_kernel(
    out: tensor, chosen: tensor, shares: tensor, y: tensor, width: int, experts: int, RANKS: tl.constexpr,
    K: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """`mix_kernel` of out [T K, RANKS width], whose rows hold `width` columns of each rank."""
    token, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for rank in range(K):
        pair = token * K + rank
        owner = ((tl.load(chosen + pair) + 1) * RANKS - 1) // experts  # `routing.expert_range`
        row = out + (pair * RANKS + owner) * width
        total += tl.load(row + column, column < width, 0.0) * tl.load(shares + pair)
    tl.store(y + token * width + column, total.to(y.dtype.element_ty), column < width)


def mix_experts(
    outputs: Tensor, router: Tensor, bias: Tensor | None, routing: Routing, ranks: int, *, config: LaunchConfig
) -> Tensor:
    """See `ops.OptionalOps.mix_experts`."""
    width = outputs.shape[1] // ranks
    chosen, shares = choose(router, bias, routing, config)
    y = router.new_empty(len(router), width)
    args = {
        "out": outputs.contiguous(),
        "chosen": chosen,
        "shares": shares,
        "y": y,
        "width": width,
        "experts": router.shape[1],
        "RANKS": ranks,
        "K": routing.top_k,
        "BLOCK": COLUMNS,
    }
    config.launch(mix_ranks_kernel, (len(router), -(-width // COLUMNS)), args, 4, 1)
    return y
