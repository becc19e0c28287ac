"""The native mixture of experts: bit for bit what its products give one by one, in any company and on any team."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import linear_weights as make
import numpy as np
import pytest
import torch
from linear_weights import MAKERS

from headrace.errors import PlatformError
from headrace.kernels import moe, random
from headrace.kernels.linear.cpu_pack import Compute
from headrace.kernels.moe.generate import draw_routing
from headrace.kernels.moe.reference import route
from headrace.kernels.moe.routing import Routing
from headrace.kernels.registry import bind
from headrace.kernels.weight import Weight
from headrace.platforms.cpu import native
from headrace.platforms.cpu.native_device import NativeDevice
from headrace.platforms.cpu.native_launch import EagerLauncher
from headrace.platforms.cpu.native_linear import NativeLinear
from headrace.platforms.cpu.native_moe import NativeMoE
from headrace.platforms.cpu.native_ops import NativeOps
from headrace.platforms.cpu.native_team import Team
from headrace.quant.weights import stack
from headrace.types import Bucket, KVLayout, LayerKV

CPU = torch.device("cpu")
Tensor = torch.Tensor
ISAS = native.usable()
COMPUTES: tuple[Compute, ...] = ("float32", "bfloat16", "int8")


class Kernels:
    """The operators of one team, for one arithmetic."""

    def __init__(self, threads: int, compute: Compute = "int8", isa: str | None = None) -> None:
        self.team = Team(native.load(isa), threads)
        self.ops = NativeOps(EagerLauncher(self.team))
        self.linear = NativeLinear(self.ops, compute)
        self.experts = NativeMoE(self.ops, self.linear)
        self.moe = self.experts.moe


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, Kernels]]:
    made = {threads: Kernels(threads) for threads in (1, 2, 5)}
    yield made
    for kernels in made.values():
        kernels.team.close()


def experts(name: str, count: int, columns: int = 256, width: int = 256, bias: bool = False) -> dict[str, Weight]:
    rng = np.random.default_rng(len(name))
    stacks = {
        "gate_up": stack([MAKERS[name](rng, width, columns) for _ in range(2 * count)]),
        "down": stack([MAKERS[name](rng, columns, width) for _ in range(count)]),
    }
    for weight in stacks.values():
        weight.bias = make.normal(rng, weight.shape[0]) if bias else None
    return stacks


def inputs(tokens: int, columns: int, count: int, seed: int = 0) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {"x": make.normal(rng, tokens, columns), "router": 2 * make.normal(rng, tokens, count)}


def one_by_one(kernels: Kernels, given: dict[str, Any], routing: Routing) -> Tensor:
    """The same by `linear` and `gated_activation`, an expert at a time."""
    x, gate_up, down = given["x"], given["gate_up"], given["down"]
    width = down.shape[1]
    # The shares come from the kernel itself: over experts that give one number each.
    chosen, _ = route(given["router"], None, routing)
    shares = native_shares(kernels, given["router"], routing)
    outputs = torch.zeros(*chosen.shape, x.shape[1])
    for expert in range(given["router"].shape[1]):
        token, rank = torch.where(chosen == expert)
        if not len(token):
            continue
        pair = stack(gate_up.parts[2 * expert : 2 * expert + 2])
        if gate_up.bias is not None:
            pair.bias = gate_up.bias[2 * expert * width : (2 * expert + 2) * width]
        last = replace(down.parts[expert])
        if down.bias is not None:
            last.bias = down.bias[expert * x.shape[1] : (expert + 1) * x.shape[1]]
        hidden = kernels.ops.gated_activation(kernels.linear.linear(x[token], pair), "silu")
        outputs[token, rank] = kernels.linear.linear(hidden, last)
    total = torch.zeros_like(x)
    for rank in range(routing.top_k):
        total = total + outputs[:, rank] * shares.gather(1, chosen[:, rank, None])
    return total


def native_shares(kernels: Kernels, router: Tensor, routing: Routing) -> Tensor:
    """[T, E]: expert e of this mixture gives 1 in column e for any input: its down product only is a bias."""
    count = router.shape[1]
    zero = {"gate_up": stack([random_zero(16, count)] * (2 * count)), "down": stack([random_zero(count, 16)] * count)}
    zero["down"].bias = torch.eye(count).flatten()
    return kernels.moe(torch.zeros(len(router), count), router, **zero, bias=None, routing=routing, kind="silu")


def random_zero(rows: int, columns: int) -> Weight:
    return replace(random.weight(np.random.default_rng(0), rows, columns, CPU, "float32", False),
                   tensors={"weight": torch.zeros(rows, columns)})  # fmt: skip


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("name", MAKERS)
def test_every_format_gives_linears_bits(name: str, compute: Compute) -> None:
    kernels = Kernels(2, compute)
    count, routing, size = 6, Routing(2), 384 if name == "fp8-blocks" else 256
    stacks = experts(name, count, size, size, bias=name in ("q8_0", "bfloat16"))
    given: dict[str, Any] = {**stacks, **inputs(9, size, count)}
    found = kernels.moe(**given, bias=None, routing=routing, kind="silu")
    assert found.abs().mean() > 0
    assert torch.equal(found, one_by_one(kernels, given, routing))
    kernels.team.close()


@pytest.mark.parametrize("activation", ["int8_token", "int8_tensor", "fp8_token", "fp8_group128"])
def test_inputs_are_rounded_according_to_each_experts_scheme(activation: str, teams: dict[int, Kernels]) -> None:
    name = "int8-g0" if activation.startswith("int8") else "fp8-wide-blocks"
    given: dict[str, Any] = {**experts(name, 4), **inputs(7, 256, 4)}
    for index, part in enumerate((*given["gate_up"].parts, *given["down"].parts)):
        part.activation = activation
        part.tensors["input_scale"] = torch.tensor([0.02 + 0.001 * index])  # of gate and up, too: two forms a row
    routing = Routing(2)
    found = teams[2].moe(**given, bias=None, routing=routing, kind="silu")
    assert torch.equal(found, one_by_one(teams[2], given, routing))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_matches_the_reference_over_its_generator(isa: str, dtype: str) -> None:
    kernels, limit = Kernels(2, "float32", isa), moe.SPEC.tolerance[dtype]
    for seed in range(40):
        given = moe.SPEC.generate(np.random.default_rng(seed), CPU, dtype)
        wanted, found = moe.SPEC.reference(**given), kernels.moe(**given)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        wrong = (found.double() - wanted.double()).square().sum()
        assert wrong <= limit * wanted.double().square().sum().clamp(min=1e-30), seed
    kernels.team.close()


@pytest.mark.parametrize("name", ["q4_1", "bfloat16", "float32", "int8-g0", "int4-act-order"])
def test_bits_depend_on_the_token_alone(name: str, teams: dict[int, Kernels]) -> None:
    """On any team; alone, among other rows, and when others send hundreds of rows to the same expert."""
    count, routing = 8, Routing(3)
    given: dict[str, Any] = {**experts(name, count), **inputs(300, 256, count)}
    given["router"][100:, 2] += 9.0
    fixed: dict[str, Any] = {"bias": None, "routing": routing, "kind": "silu"}
    whole = teams[1].moe(**given, **fixed)
    for kernels in teams.values():
        assert torch.equal(kernels.moe(**given, **fixed), whole)
        for start, stop in ((0, 1), (7, 9), (90, 130), (299, 300), (33, 96)):
            part = {**given, "x": given["x"][start:stop], "router": given["router"][start:stop]}
            assert torch.equal(kernels.moe(**part, **fixed), whole[start:stop])


def test_more_pairs_than_are_prepared_at_a_time(teams: dict[int, Kernels]) -> None:
    """The cut falls inside an expert."""
    count, routing = 9, Routing(8)
    given: dict[str, Any] = {**experts("int8-g0", count, 16, 48), **inputs(2500, 16, count)}
    fixed: dict[str, Any] = {"bias": None, "routing": routing, "kind": "silu"}
    whole = teams[2].moe(**given, **fixed)
    for start in (0, 1000, 2490):
        part = {**given, "x": given["x"][start : start + 10], "router": given["router"][start : start + 10]}
        assert torch.equal(teams[1].moe(**part, **fixed), whole[start : start + 10])


def test_routing_is_the_references(teams: dict[int, Kernels]) -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        count, routing = draw_routing(rng)
        router = 2 * make.normal(rng, 5, count)
        chosen, shares = route(router, None, routing)
        wanted = torch.zeros(5, count).scatter(1, chosen, shares)
        torch.testing.assert_close(native_shares(teams[2], router, routing), wanted, rtol=1e-5, atol=1e-7)


def test_equal_scores_go_to_the_lower_experts(teams: dict[int, Kernels]) -> None:
    for routing in (Routing(3), Routing(3, "sigmoid", groups=2, top_groups=1)):
        shares = native_shares(teams[2], torch.zeros(2, 8), routing)
        assert torch.equal(shares > 0, torch.tensor([[True] * 3 + [False] * 5] * 2))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_with_its_token(value: float, teams: dict[int, Kernels]) -> None:
    given: dict[str, Any] = {**experts("q8_0", 6), **inputs(5, 256, 6)}
    fixed: dict[str, Any] = {"bias": None, "routing": Routing(2), "kind": "silu"}
    clean = teams[2].moe(**given, **fixed)
    given["router"][1, 3], given["x"][3, 7] = value, value
    found = teams[2].moe(**given, **fixed)
    assert torch.equal(found[[0, 2, 4]], clean[[0, 2, 4]])


def test_one_tape_serves_every_number_of_tokens() -> None:
    device = NativeDevice(threads=2)
    ops: Any = bind(device)
    given = experts("q8_0", 8)
    fixed: dict[str, Any] = {**given, "bias": None, "routing": Routing(2), "kind": "silu"}

    def step(kv: Any, arrays: Mapping[str, Tensor]) -> tuple[Any, Mapping[str, Tensor]]:
        x = ops.embedding(arrays["token_ids"], table, 1.0)
        return kv, {"y": ops.moe(x, ops.linear(x, router), **fixed)}

    rng = np.random.default_rng(1)
    table, router = MAKERS["float32"](rng, 50, 256), MAKERS["float32"](rng, 8, 256)
    kv = device.alloc_kv(KVLayout((LayerKV(1, 16),), 16, "float32"), 2)
    executable = device.compile(step, Bucket(tokens=40, seqs=4, rows=4, blocks=2))
    for tokens in (40, 1, 7, 33, 40):
        ids = rng.integers(0, 50, tokens).astype(np.int32)
        sizes = np.array([tokens, 1, 1], np.int32)
        _, outputs = executable(kv, {"sizes": device.put(sizes), "token_ids": device.put(ids)})
        found = torch.from_numpy(device.get(outputs["y"]).result())
        x = table.tensors["weight"][ids]
        assert torch.equal(found, ops.moe(x, ops.linear(x, router), **fixed))
    device.close()


def test_what_does_not_fit_is_refused(teams: dict[int, Kernels]) -> None:
    given: dict[str, Any] = {**experts("q8_0", 3), **inputs(2, 256, 4), "bias": None, "routing": Routing(2)}
    with pytest.raises(PlatformError, match=r"6 matrices of \[\(256, 256\)\], expected 8 of \(256, 256\)"):
        teams[1].moe(**given, kind="silu")
    given["router"] = given["router"][:, :3]
    with pytest.raises(PlatformError, match="kind 'relu': choose one of silu"):
        teams[1].moe(**given, kind="relu")
