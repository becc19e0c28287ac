"""The simulator's mixture of experts: shapes of the reference, and a cost that follows what must be read and
multiplied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.kernels import moe, random
from headrace.kernels.moe.routing import Routing
from headrace.kernels.weight import Weight
from headrace.platforms.sim import SimMachine
from headrace.platforms.sim.sim_operators import SimOperators

CPU = torch.device("cpu")


def stacked(count: int, rows: int, columns: int) -> Weight:
    part = random.weight(np.random.default_rng(0), rows, columns, CPU, "bfloat16", False)
    return Weight("stack", (count * rows, columns), {}, Weight.dequantize, parts=(part,) * count)


@pytest.mark.parametrize("seed", range(5))
def test_shapes_are_those_of_the_reference(seed: int) -> None:
    given = moe.SPEC.generate(np.random.default_rng(seed), CPU, "float32")
    arrays = {key: value.numpy() if isinstance(value, torch.Tensor) else value for key, value in given.items()}
    assert SimOperators(SimMachine()).moe(**arrays).shape == tuple(moe.SPEC.reference(**given).shape)


def test_the_cost_grows_with_the_experts_read_until_all_are() -> None:
    operators = SimOperators(SimMachine())
    fixed: dict[str, Any] = {
        "gate_up": stacked(32, 64, 512),
        "down": stacked(16, 512, 64),
        "bias": None,
        "kind": "silu",
    }

    def seconds(tokens: int) -> float:
        x, router = np.zeros((tokens, 512), np.float32), np.zeros((tokens, 16), np.float32)
        operators.moe(x, router, routing=Routing(4), **fixed)
        return operators.meter.take()

    one, two, four, eight = (seconds(tokens) for tokens in (1, 2, 4, 8))
    assert two > one
    assert four - two == pytest.approx(2 * (two - one), rel=0.1)
    assert eight - four < 0.5 * (four - two)
