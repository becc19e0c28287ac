"""Mixture-of-experts layers: what they are, and the stacks that the operator reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.kernels.moe.routing import Routing
from headrace.kernels.weight import Weight
from headrace.quant.weights import stack

__all__ = ["SHARED_ROUTING", "Experts", "MoE", "SharedExpert", "expert_stacks"]

Experts = Callable[[str, int, int, int], list[Weight]]
"""(name, experts, rows, columns) → a weight an expert."""


@dataclass(frozen=True, slots=True)
class MoE:
    """The experts of one model's sparse layers."""

    experts: int
    intermediate: int
    """Hidden columns of one expert."""
    routing: Routing
    shared: int = 0
    """Hidden columns of an expert that every token goes through beside those it chooses; 0: there is none."""
    shared_gated: bool = False
    """Its output is scaled by the sigmoid of a score of its own (Qwen2-MoE), else it is taken whole (DeepSeek)."""
    biased: bool = False
    """A correction bias an expert takes part in the choice."""


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """The expert of every token. With a `share` its matrices are a mixture of one expert, as `ops.Ops.moe` takes them."""

    gate_up: Weight
    """[2 shared, hidden]"""
    down: Weight
    share: Weight | None = None
    """[1, hidden]; the sigmoid of its product is the expert's share. None: always 1."""


SHARED_ROUTING = Routing(1, "sigmoid", renormalize=False)
"""Of a mixture of one."""


def expert_stacks(
    read: Experts, moe: MoE, hidden: int, names: tuple[str, str, str], index: int
) -> tuple[Weight, Weight]:
    """(gate and up, down) of one layer as `ops.Ops.moe` takes them; `names` of gate, up and down."""
    gate, up, down = (name.format(i=index, e="{e}") for name in names)
    gates = read(gate, moe.experts, moe.intermediate, hidden)
    ups = read(up, moe.experts, moe.intermediate, hidden)
    pairs = [part for pair in zip(gates, ups, strict=True) for part in pair]
    downs = read(down, moe.experts, hidden, moe.intermediate)
    return stack(pairs, f"layer {index} gate and up of the experts"), stack(downs, f"layer {index} down of the experts")
