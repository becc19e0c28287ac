"""Mixture-of-experts layers: their description, and the stacks of weights that the operator reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.kernels.moe.routing import Routing
from headrace.kernels.weight import Weight
from headrace.quant.weights import stack

__all__ = ["SHARED_ROUTING", "Experts", "MoE", "SharedExpert", "expert_stacks"]

Experts = Callable[[str, int, int, int], list[Weight]]
"""(name, experts, rows, columns) → one weight per expert."""


@dataclass(frozen=True, slots=True)
class MoE:
    """The experts of one model's sparse layers."""

    experts: int
    intermediate: int
    """Hidden columns of one expert."""
    routing: Routing
    shared: int = 0
    """Hidden columns of the shared expert, which every token uses; 0: no shared expert."""
    shared_gated: bool = False
    """The shared expert's output is multiplied by the sigmoid of its gate (Qwen2-MoE); if not, by 1 (DeepSeek)."""
    biased: bool = False
    """The choice of experts uses a correction bias per expert."""
    ranks: int = 1
    """Ranks that hold some of the experts each, complete; 1: every rank holds a part of each."""
    first: int = 0
    """The first expert that this rank holds."""


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """The shared expert. With a gate `share`, its matrices are a mixture of one expert, as `ops.Ops.moe` requires."""

    gate_up: Weight
    """[2 shared, hidden]"""
    down: Weight
    share: Weight | None = None
    """The shared expert gate, [1, hidden]: the sigmoid of its product is the expert's share. None: the share is 1."""


SHARED_ROUTING = Routing(1, "sigmoid", renormalize=False)
"""The routing of a gated shared expert: a mixture of one expert."""


def expert_stacks(
    read: Experts, moe: MoE, hidden: int, names: tuple[str, str, str], index: int
) -> tuple[Weight, Weight]:
    """(gate and up, down) of one layer as `ops.OptionalOps.moe` requires, of the experts that `read` gives.

    `names` are those of gate, up and down.
    """
    gate, up, down = (name.format(i=index, e="{e}") for name in names)
    gates = read(gate, moe.experts, moe.intermediate, hidden)
    ups = read(up, moe.experts, moe.intermediate, hidden)
    pairs = [part for pair in zip(gates, ups, strict=True) for part in pair]
    downs = read(down, moe.experts, hidden, moe.intermediate)
    return stack(pairs, f"layer {index} gate and up of the experts"), stack(downs, f"layer {index} down of the experts")
