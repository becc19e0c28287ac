"""The references of `own_experts` and `mix_experts`: over any number of ranks they are `moe`, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.kernels import mix_experts, moe, own_experts
from headrace.kernels.moe.reference import route
from headrace.kernels.moe.routing import expert_range
from headrace.kernels.own_experts.generate import part_of

CPU = torch.device("cpu")
Tensor = torch.Tensor


def drawn(spec: Any, seed: int, dtype: str = "float32") -> dict[str, Any]:
    arguments: dict[str, Any] = spec.generate(np.random.default_rng(seed), CPU, dtype)
    return arguments


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_every_expert_has_one_rank_which_follows_from_its_number(ranks: int) -> None:
    for experts in range(ranks, 40):
        ranges = [expert_range(experts, rank, ranks) for rank in range(ranks)]
        held = [expert for begin, end in ranges for expert in range(begin, end)]
        assert held == list(range(experts))
        sizes = {end - begin for begin, end in ranges}
        assert max(sizes) - min(sizes) <= 1
        for rank, (begin, end) in enumerate(ranges):
            assert all(((expert + 1) * ranks - 1) // experts == rank for expert in range(begin, end))


def exchanged(outputs: list[Tensor], rank: int) -> Tensor:
    """What `all_to_all` along the columns gives a rank; fewer columns than ranks are padded."""
    ranks = len(outputs)
    wide = [torch.nn.functional.pad(x, (0, -x.shape[1] % ranks)) for x in outputs]
    return torch.cat([x.tensor_split(ranks, 1)[rank] for x in wide], 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_give_the_bits_of_one(ranks: int, dtype: str) -> None:
    several = 0
    for seed in range(25):
        given = drawn(moe.SPEC, seed, dtype)
        experts, columns = given["router"].shape[1], given["x"].shape[1]
        if experts < ranks:
            continue
        outputs = []
        for rank in range(ranks):
            begin, end = expert_range(experts, rank, ranks)
            own = {"gate_up": part_of(given["gate_up"], 2 * begin, 2 * end), "down": part_of(given["down"], begin, end)}
            outputs.append(own_experts.SPEC.reference(**{**given, **own}, first=begin))
        filled = torch.stack([x.abs().amax(1) > 0 for x in outputs]).sum(0)
        assert (filled <= 1).all(), "a pair's row is one rank's"
        several += int((torch.stack([x.abs().amax() > 0 for x in outputs]).sum() > 1) if len(filled) else 0)
        rules = {name: given[name] for name in ("router", "bias", "routing")}
        mixed = [mix_experts.SPEC.reference(exchanged(outputs, rank), **rules, ranks=ranks) for rank in range(ranks)]
        found = torch.cat(mixed, 1)[:, :columns]
        assert found.dtype == given["x"].dtype
        assert torch.equal(found, moe.SPEC.reference(**given)), seed
    assert several > 5


@pytest.mark.parametrize("seed", range(10))
def test_columns_of_other_ranks_are_not_read(seed: int) -> None:
    given = drawn(mix_experts.SPEC, seed)
    wanted = mix_experts.SPEC.reference(**given)
    chosen, _ = route(given["router"], given["bias"], given["routing"])
    owner = ((chosen + 1) * given["ranks"] - 1) // given["router"].shape[1]
    blocks = given["outputs"].unflatten(1, (given["ranks"], -1))
    for pair, rank in enumerate(owner.flatten().tolist()):
        blocks[pair, torch.arange(given["ranks"]) != rank] = torch.nan
    assert torch.equal(mix_experts.SPEC.reference(**given), wanted)
    assert wanted.isfinite().all()


def test_every_generated_input_is_accepted() -> None:
    for spec in (own_experts.SPEC, mix_experts.SPEC):
        for seed in range(20):
            for dtype in ("float32", "bfloat16", "float16"):
                assert spec.reference(**drawn(spec, seed, dtype)).isfinite().all()
