"""`own_experts` and `mix_experts` by interpreter: their references', and over ranks the bits of `moe`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_triton_linear import WEIGHTS
from test_triton_moe import mixture
from triton_support import BY_NAME, CPU, operator, rng, run

from headrace.kernels.moe.routing import Routing, expert_range
from headrace.kernels.own_experts.generate import part_of

OWN, MIX = BY_NAME["own_experts"], BY_NAME["mix_experts"]


def quick(spec: Any, dtype: str, count: int) -> list[dict[str, Any]]:
    """Random calls that the interpreter can run quickly."""
    found = (spec.generate(rng(seed), CPU, dtype) for seed in range(400))
    small = (a for a in found if len(a["router"]) * a["routing"].top_k <= 12 and a.get("x", a["router"]).shape[1] < 100)
    return [next(small) for _ in range(count)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", [OWN, MIX], ids=lambda spec: spec.name)
def test_over_the_operators_generator(spec: Any, dtype: str) -> None:
    for arguments in quick(spec, dtype, 5):
        run(spec, arguments, spec.tolerance[dtype], dtype=dtype)


@pytest.mark.parametrize("form", ["int8_channel", "int4_32", "fp8_block"])
def test_ranks_give_the_bits_of_one(form: str) -> None:
    given = {**mixture(WEIGHTS[form], tokens=6, experts=3), "routing": Routing(2)}
    whole = operator("moe", dtype="bfloat16")(**given)
    outputs = []
    for rank in range(2):
        begin, end = expert_range(3, rank, 2)
        own = {"gate_up": part_of(given["gate_up"], 2 * begin, 2 * end), "down": part_of(given["down"], begin, end)}
        outputs.append(operator("own_experts", dtype="bfloat16")(**{**given, **own}, first=begin))
    rules = {name: given[name] for name in ("router", "bias", "routing")}
    sent = [torch.cat([x.tensor_split(2, 1)[rank] for x in outputs], 1) for rank in range(2)]
    mixed = [operator("mix_experts", dtype="bfloat16")(x, **rules, ranks=2) for x in sent]
    assert torch.equal(torch.cat(mixed, 1), whole)
