"""Reference of `moe`."""

from __future__ import annotations

import torch

from headrace.kernels.gated_activation.reference import gated_activation
from headrace.kernels.linear.reference import product
from headrace.kernels.moe.routing import Routing
from headrace.kernels.row_arithmetic import elementwise, tree_sum
from headrace.kernels.weight import Weight

__all__ = ["add_shares", "expert_outputs", "moe", "route"]

Tensor = torch.Tensor


def route(router: Tensor, bias: Tensor | None, routing: Routing) -> tuple[Tensor, Tensor]:
    """(int64 [T, k] experts, float32 [T, k] shares) of router outputs [T, E], in descending order of (biased) score."""
    x = router.float()
    if routing.score == "softmax":
        powers = elementwise(torch.exp, x - x.amax(-1, keepdim=True))
        scores = powers / tree_sum(powers).unsqueeze(-1)
    else:
        scores = 1 / (1 + elementwise(torch.exp, -x))
    choice = scores if bias is None else scores + bias.float()
    if routing.groups > 1:
        runs = choice.reshape(len(x), routing.groups, x.shape[1] // routing.groups)
        worth = tree_sum(runs.sort(dim=-1, descending=True).values[..., : routing.group_best])
        open_ = torch.zeros_like(worth, dtype=torch.bool).scatter(1, _largest(worth, routing.top_groups), True)
        choice = runs.masked_fill(~open_.unsqueeze(-1), -torch.inf).view_as(choice)
    chosen = _largest(choice, routing.top_k)
    shares = scores.gather(1, chosen)
    if routing.renormalize:
        shares = shares / tree_sum(shares).clamp(min=1e-20).unsqueeze(-1)
    return chosen, shares * routing.scale


def _largest(x: Tensor, count: int) -> Tensor:
    """The indices of the largest values of each row, in descending order; ties by the lower index."""
    return x.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def moe(
    x: Tensor, router: Tensor, gate_up: Weight, down: Weight, bias: Tensor | None, routing: Routing, kind: str
) -> Tensor:
    """[T, D] in x's dtype; see `ops.OptionalOps.moe`."""
    chosen, shares = route(router, bias, routing)
    return add_shares(expert_outputs(x, chosen, gate_up, down, kind), shares).to(x.dtype)


def expert_outputs(x: Tensor, chosen: Tensor, gate_up: Weight, down: Weight, kind: str) -> Tensor:
    """float32 [T, k, D]: what the chosen experts [T, k] give; zeros for numbers that are not in the stacks.

    The products are those of `linear`, and an expert's hidden row is rounded to x's dtype.
    """
    width, count = down.shape[1], len(down.parts)
    outputs = x.new_zeros(*chosen.shape, x.shape[1], dtype=torch.float32)
    for expert in sorted(set(chosen.flatten().tolist()) & set(range(count))):
        token, rank = torch.where(chosen == expert)
        rows, first = x[token], 2 * expert
        halves = [product(rows, part) for part in gate_up.parts[first : first + 2]]
        both = torch.cat(halves, 1)
        if gate_up.bias is not None:
            both = both + gate_up.bias[first * width : (first + 2) * width]
        out = product(gated_activation(both, kind).to(x.dtype), down.parts[expert])
        if down.bias is not None:
            out = out + down.bias[expert * x.shape[1] : (expert + 1) * x.shape[1]]
        outputs[token, rank] = out
    return outputs


def add_shares(outputs: Tensor, shares: Tensor) -> Tensor:
    """float32 [T, D]: each token's outputs [T, k, D] times their shares [T, k], added in the order of the choice."""
    total = torch.zeros_like(outputs[:, 0])
    for place in range(shares.shape[1]):
        total = total + outputs[:, place] * shares[:, place, None]
    return total
