"""The reference of `moe`: routing as in other implementations, sums by definition, bits independent of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from headrace.kernels import random
from headrace.kernels.moe import SPEC
from headrace.kernels.moe.reference import moe, route
from headrace.kernels.moe.routing import Routing

CPU = torch.device("cpu")
Tensor = torch.Tensor


def generated(seed: int, dtype: str = "float32") -> dict[str, Any]:
    arguments: dict[str, Any] = SPEC.generate(np.random.default_rng(seed), CPU, dtype)
    return arguments


def scores(seed: int, tokens: int = 6, experts: int = 16) -> Tensor:
    return 2 * random.normal(np.random.default_rng(seed), tokens, experts, device=CPU)


def test_every_generated_input_is_accepted_and_some_experts_have_no_token() -> None:
    idle = 0
    for seed in range(30):
        for dtype in ("float32", "bfloat16", "float16"):
            arguments = generated(seed, dtype)
            found = moe(**arguments)
            assert (found.shape, found.dtype) == (arguments["x"].shape, arguments["x"].dtype)
            assert found.isfinite().all()
        experts = arguments["router"].shape[1]
        idle += len(route(arguments["router"], arguments["bias"], arguments["routing"])[0].unique()) < experts
    assert idle > 5


@pytest.mark.parametrize("renormalize", [False, True])
def test_softmax_shares(renormalize: bool) -> None:
    router = scores(0)
    chosen, shares = route(router, None, Routing(4, "softmax", renormalize, 2.0))
    values, wanted = router.double().softmax(-1).topk(4)
    assert torch.equal(chosen, wanted)
    values = values / values.sum(-1, keepdim=True) if renormalize else values
    torch.testing.assert_close(shares.double(), 2 * values, rtol=1e-6, atol=1e-7)


def test_groups_and_a_correction_bias_like_deepseek_v3() -> None:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    config = DeepseekV3Config(
        hidden_size=16, n_routed_experts=16, num_experts_per_tok=4, n_group=4, topk_group=2, routed_scaling_factor=2.5
    )
    theirs = DeepseekV3TopkRouter(config)
    generator = torch.Generator().manual_seed(0)
    theirs.weight.data = torch.randn(16, 16, generator=generator)
    theirs.e_score_correction_bias.copy_(torch.randn(16, generator=generator) / 4)
    x = torch.randn(20, 16, generator=generator)
    router, wanted, places = theirs(x)
    chosen, shares = route(router, theirs.e_score_correction_bias, Routing(4, "sigmoid", True, 2.5, 4, 2, 2))

    def dense(index: Tensor, values: Tensor) -> Tensor:
        return torch.zeros(20, 16).scatter(1, index, values)

    torch.testing.assert_close(dense(chosen, shares), dense(places, wanted).detach())


def test_a_bias_changes_the_choice_and_not_the_shares() -> None:
    router, bias = scores(1), torch.zeros(16)
    bias[5] = 10.0
    chosen, shares = route(router, bias, Routing(2, "sigmoid", renormalize=False))
    assert (chosen[:, 0] == 5).all()
    torch.testing.assert_close(shares[:, 0], router[:, 5].sigmoid())


def test_equal_scores_go_to_the_lower_experts() -> None:
    chosen, shares = route(torch.zeros(1, 8), None, Routing(3))
    assert chosen.tolist() == [[0, 1, 2]]
    torch.testing.assert_close(shares, torch.full((1, 3), 1 / 3))


@pytest.mark.parametrize(
    ("routing", "experts"),
    [(Routing(0), 4), (Routing(5), 4), (Routing(2, groups=3), 4), (Routing(2, groups=2, top_groups=3), 4),
     (Routing(3, groups=2, top_groups=1), 4), (Routing(1, group_best=0), 4)],
)  # fmt: skip
def test_impossible_routings(routing: Routing, experts: int) -> None:
    assert not routing.fits(experts)
    assert Routing(2, groups=2, top_groups=1).fits(4)


def test_the_sum_by_definition() -> None:
    checked = 0
    for seed in range(30):
        arguments = generated(seed)
        x, gate_up, down = arguments["x"].double(), arguments["gate_up"], arguments["down"]
        if arguments["kind"] != "silu" or not len(x):
            continue
        checked += 1
        chosen, shares = route(arguments["router"], arguments["bias"], arguments["routing"])
        hidden, width = x.shape[1], down.shape[1]
        both = [part.dequantize().double() for part in gate_up.parts]
        last = [part.dequantize().double() for part in down.parts]
        inner = torch.zeros(2 * len(last), width) if gate_up.bias is None else gate_up.bias.view(-1, width)
        outer = torch.zeros(len(last), hidden) if down.bias is None else down.bias.view(-1, hidden)
        wanted = torch.zeros_like(x)
        for token in range(len(x)):
            for expert, share in zip(chosen[token].tolist(), shares[token].double(), strict=True):
                gate, up = (both[i] @ x[token] + inner[i] for i in (2 * expert, 2 * expert + 1))
                wanted[token] += share * (last[expert] @ (functional.silu(gate) * up) + outer[expert])
        torch.testing.assert_close(moe(**arguments).double(), wanted, rtol=1e-4, atol=1e-5)
    assert checked > 5


@pytest.mark.parametrize("seed", range(8))
def test_a_token_alone_and_in_a_batch(seed: int) -> None:
    arguments = generated(seed + 100)
    tokens, whole = len(arguments["x"]), moe(**arguments)
    for start, stop in ((0, 1), (tokens // 2, tokens)):
        part = {name: arguments[name][start:stop] for name in ("x", "router")}
        assert torch.equal(moe(**{**arguments, **part}), whole[start:stop])
