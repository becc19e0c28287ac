"""Reference of `own_experts`."""

from __future__ import annotations

import torch

from headrace.kernels.moe.reference import expert_outputs, route
from headrace.kernels.moe.routing import Routing
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
) -> Tensor:
    """float32 [T k, D]; see `ops.OptionalOps.own_experts`. The rows are those that `moe` adds."""
    chosen, _ = route(router, bias, routing)
    return expert_outputs(x, chosen - first, gate_up, down, kind).flatten(0, 1)
