"""Triton form of `own_experts`: the grouped products of `moe`, of this rank's experts alone."""

from __future__ import annotations

import torch

from headrace.kernels.moe.routing import Routing
from headrace.kernels.moe.triton import check_kind, grouped, products
from headrace.kernels.moe.triton_route import choose
from headrace.kernels.own_experts.reference import own_experts as by_reference
from headrace.kernels.tritonlib.launch_config import LaunchConfig
from headrace.kernels.weight import Weight

__all__ = ["own_experts"]

Tensor = torch.Tensor


def own_experts(
    x: Tensor,
    router: Tensor,
    gate_up: Weight,
    down: Weight,
    bias: Tensor | None,
    routing: Routing,
    kind: str,
    first: int,
    *,
    config: LaunchConfig,
) -> Tensor:
    """See `ops.OptionalOps.own_experts`. Raises PlatformError for a kind that is not one of three."""
    check_kind(kind)
    if grouped(gate_up, down, config) is None:
        return by_reference(x, router, gate_up, down, bias, routing, kind, first)
    chosen, _ = choose(router, bias, routing, config)
    out = x.new_zeros(len(x) * routing.top_k, x.shape[1], dtype=torch.float32)
    products(x, chosen - first, gate_up, down, kind, router.shape[1], out, config)
    return out
