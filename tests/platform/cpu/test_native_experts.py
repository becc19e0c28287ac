"""The native operators of distributed experts: `moe` to the bit, over any number of ranks and on any team."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_native_moe import Kernels, experts, inputs, teams  # noqa: F401

from headrace.conformance.operators_tier import nmse
from headrace.errors import PlatformError
from headrace.kernels import mix_experts, own_experts
from headrace.kernels.moe.routing import Routing, expert_range
from headrace.kernels.own_experts.generate import part_of
from headrace.kernels.spec import OpSpec
from headrace.platforms.cpu import native
from headrace.platforms.cpu.native_device import NativeDevice

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=str(native.missing()))
Tensor = torch.Tensor


def over(kernels: Kernels, given: dict[str, Any], routing: Routing, ranks: int) -> Tensor:
    """The mixture by `ranks` ranks, one after the other; the columns cross as `all_to_all` takes them."""
    count, outputs = given["router"].shape[1], []
    rules = {"bias": given["bias"], "routing": routing}
    for rank in range(ranks):
        begin, end = expert_range(count, rank, ranks)
        gate_up, down = part_of(given["gate_up"], 2 * begin, 2 * end), part_of(given["down"], begin, end)
        own = kernels.experts.own_experts(given["x"], given["router"], gate_up, down, **rules, kind="silu", first=begin)
        outputs.append(own)
    mixed = []
    for rank in range(ranks):
        sent = torch.cat([x.tensor_split(ranks, 1)[rank] for x in outputs], 1)
        mixed.append(kernels.experts.mix_experts(sent, given["router"], **rules, ranks=ranks))
    return torch.cat(mixed, 1)


@pytest.mark.parametrize("name", ["bfloat16", "int4-g32", "int8-g0", "q4_0", "fp8-row"])
@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_the_bits_of_one_rank(name: str, tokens: int, teams: dict[int, Kernels]) -> None:  # noqa: F811
    routing = Routing(3)
    given: dict[str, Any] = {**experts(name, 7, bias=tokens == 5), **inputs(tokens, 256, 7), "bias": None}
    whole = teams[1].moe(**given, routing=routing, kind="silu")
    for threads, ranks in ((1, 2), (2, 4), (5, 1)):
        assert torch.equal(over(teams[threads], given, routing, ranks), whole), (threads, ranks)


def test_groups_a_correction_and_ranks_without_a_token(teams: dict[int, Kernels]) -> None:  # noqa: F811
    routing = Routing(2, "sigmoid", scale=2.5, groups=4, top_groups=1)
    given: dict[str, Any] = {**experts("bfloat16", 8, 64, 32), **inputs(9, 64, 8), "bias": torch.zeros(8)}
    given["bias"][:2] += 5.0
    whole = teams[1].moe(**given, routing=routing, kind="silu")
    assert torch.equal(over(teams[2], given, routing, 4), whole)


def test_no_tokens(teams: dict[int, Kernels]) -> None:  # noqa: F811
    given: dict[str, Any] = {**experts("bfloat16", 4, 64, 32), **inputs(0, 64, 4), "bias": None}
    assert over(teams[2], given, Routing(2), 2).shape == (0, 64)


def test_stacks_of_other_sizes_are_refused(teams: dict[int, Kernels]) -> None:  # noqa: F811
    given: dict[str, Any] = {**experts("bfloat16", 4, 64, 32), **inputs(3, 64, 8), "bias": None}
    short = {**given, "gate_up": part_of(given["gate_up"], 0, 6)}
    with pytest.raises(PlatformError, match=r"gate and up: 6 matrices .*, expected 8"):
        teams[1].experts.own_experts(**short, routing=Routing(2), kind="silu", first=0)
    with pytest.raises(PlatformError, match="kind 'relu': choose one of"):
        teams[1].experts.own_experts(**given, routing=Routing(2), kind="relu", first=0)


@pytest.mark.parametrize("spec", [own_experts.SPEC, mix_experts.SPEC], ids=lambda spec: spec.name)
def test_over_the_operators_generator(spec: OpSpec) -> None:
    device = NativeDevice(threads=2, dtype="float32")
    operator = device.op(spec)
    assert operator is not None
    try:
        for seed in range(25):
            given = spec.generate(np.random.default_rng(seed), torch.device("cpu"), "float32")
            wanted, found = spec.reference(**given), operator(**given)
            assert found.shape == wanted.shape
            assert nmse(found.numpy(), wanted.numpy()) <= spec.tolerance["float32"], seed
    finally:
        device.close()
