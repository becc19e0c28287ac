"""Packed products against the exact reference: every format, arithmetic and instruction set; and the same bits in any
company."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import linear_weights as make
import numpy as np
import pytest
import torch
from linear_weights import MAKERS

from headrace.errors import PlatformError
from headrace.kernels.linear.cpu_pack import Compute, PackedWeight, pack
from headrace.kernels.linear.reference import product
from headrace.kernels.logits.reference import logits as reference_logits
from headrace.kernels.ops import Batch
from headrace.kernels.weight import Weight
from headrace.platforms.cpu import native
from headrace.platforms.cpu.native_launch import EagerLauncher, Launcher
from headrace.platforms.cpu.native_linear import NativeLinear
from headrace.platforms.cpu.native_team import Team
from headrace.platforms.cpu.weight_arena import WeightArena
from headrace.quant.weights import dense, stack

Tensor = torch.Tensor
ISAS = native.usable()
COMPUTES: tuple[Compute, ...] = ("float32", "bfloat16", "int8")


@dataclass
class Owner:
    launcher: Launcher


class Kernels:
    """The operators of one instruction set and team, for each arithmetic."""

    def __init__(self, isa: str | None, threads: int) -> None:
        self.team = Team(native.load(isa), threads)
        owner = Owner(EagerLauncher(self.team))
        self.by = {compute: NativeLinear(owner, compute) for compute in COMPUTES}

    def linear(self, x: Tensor, weight: Weight, compute: Compute = "int8") -> Tensor:
        return self.by[compute].linear(x, weight)


@pytest.fixture(scope="module", params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    found = Kernels(request.param, 2)
    yield found
    found.team.close()


@pytest.fixture(scope="module")
def best() -> Iterator[dict[int, Kernels]]:
    teams = {threads: Kernels(None, threads) for threads in (1, 2, 3)}
    yield teams
    for kernels in teams.values():
        kernels.team.close()


def error(found: Tensor, expected: Tensor) -> float:
    """Normalised mean squared error."""
    assert found.shape == expected.shape
    wrong = (found.double() - expected.double()).square().sum()
    return float(wrong / expected.double().square().sum().clamp(min=1e-30))


def limit(weight: Weight, compute: Compute) -> float:
    if weight.activation is not None:
        return 1e-9  # the rounding of inputs is the reference's own
    plain = weight.scheme in ("float32", "bfloat16", "float16", "fp8_e4m3")
    if compute == "int8" and not plain:
        return 1e-8 if weight.wide_inputs else 2e-3
    return 1e-4 if compute != "float32" and weight.scheme in ("bfloat16", "float32", "fp8_e4m3") else 1e-10


def exact(x: Tensor, weight: Weight) -> Tensor:
    """float64 [T, N]"""
    out = x.double() @ weight.dequantize().double().T
    return out if weight.bias is None else out + weight.bias.double()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("compute", COMPUTES)
def test_matches_reference(kernels: Kernels, name: str, compute: Compute) -> None:
    rng = np.random.default_rng([len(name), len(compute)])
    for few in (True, False):
        weight = MAKERS[name](rng, int(rng.integers(1, 70)), int(rng.integers(1, 400)))
        weight.bias = make.normal(rng, weight.shape[0]) if rng.integers(2) else None
        x = make.normal(rng, int(rng.choice([1, 2, 5, 11, 20]) if few else rng.integers(65, 140)), weight.shape[1])
        assert error(kernels.linear(x, weight, compute), exact(x, weight)) < limit(weight, compute)


ACTIVATIONS = {
    "int8_token": ("int8-g0", "int8-g128", "int4-g64", "int4-g128-zeros"),
    "int8_token_asymmetric": ("int8-g0", "int8-g32"),
    "int8_tensor": ("int8-g0", "int4-g32"),
    "fp8_token": ("fp8-row", "fp8-wide-blocks", "int4-g32"),
    "fp8_tensor": ("fp8-row", "fp8-blocks", "fp8-wide-blocks"),
    "fp8_group128": ("fp8-row", "fp8-blocks", "fp8-wide-blocks"),
    "mxfp4": ("mxfp4-container",),
    "nvfp4": ("nvfp4",),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("compute", COMPUTES)
def test_rounds_inputs_according_to_the_scheme(kernels: Kernels, activation: str, compute: Compute) -> None:
    rng = np.random.default_rng(len(activation))
    for name in ACTIVATIONS[activation]:
        weight = MAKERS[name](rng, 37, 300)
        weight.activation = activation
        weight.tensors["input_scale"] = torch.tensor([0.02])
        weight.tensors["input_global_scale"] = torch.tensor([500.0])
        x = make.normal(rng, 13, weight.shape[1]) * torch.logspace(-4, 1, 13).unsqueeze(1)
        x[4] = 0
        x[5] = x[5].abs()
        assert error(kernels.linear(x, weight, compute), product(x, weight)) < limit(weight, compute)


@pytest.mark.parametrize("name", MAKERS)
def test_embedding_rows_are_exact(kernels: Kernels, name: str) -> None:
    rng = np.random.default_rng(3)
    table = MAKERS[name](rng, 53, 333)
    ids = torch.from_numpy(rng.integers(0, 53, 40, dtype=np.int32))
    for prepacked in (False, True):
        if prepacked:
            kernels.by["int8"].pack(table)
        found = kernels.by["int8"].embedding(ids, table, 1.5)
        assert torch.equal(found, table.dequantize()[ids.long()] * 1.5)


@pytest.mark.parametrize("name", MAKERS)
def test_bits_depend_on_the_row_alone(best: dict[int, Kernels], name: str) -> None:
    rng = np.random.default_rng(len(name))
    weight = MAKERS[name](rng, 41, 200)
    x = make.normal(rng, 23, weight.shape[1])
    for compute in COMPUTES:
        whole = best[2].linear(x, weight, compute)
        for threads, kernels in best.items():
            count = int(rng.integers(1, 23))
            start = int(rng.integers(0, 24 - count))
            assert torch.equal(kernels.linear(x[start : start + count], weight, compute), whole[start : start + count])
            assert torch.equal(kernels.linear(x[start : start + 1], weight, compute), whole[start : start + 1]), threads
            order = torch.from_numpy(rng.permutation(23))
            assert torch.equal(kernels.linear(x[order], weight, compute), whole[order])


@pytest.mark.parametrize("name", MAKERS)
def test_every_number_of_rows_gives_the_same_bits(best: dict[int, Kernels], name: str) -> None:
    """Tiles of all sizes, alone and beside each other."""
    rng = np.random.default_rng(3)
    weight = MAKERS[name](rng, 41, 200)
    x = make.normal(rng, 24, weight.shape[1])
    for compute in COMPUTES:
        whole = best[1].linear(x, weight, compute)
        for count in range(1, 24):
            assert torch.equal(best[1].linear(x[:count], weight, compute), whole[:count]), count


@pytest.mark.parametrize("name", ["q4_1", "bfloat16", "float32", "int8-g0"])
def test_bits_survive_long_prefills(best: dict[int, Kernels], name: str) -> None:
    """More rows than are prepared at a time."""
    rng = np.random.default_rng(5)
    weight = MAKERS[name](rng, 48, 96)
    x = make.normal(rng, 1300, weight.shape[1])
    for compute in ("int8", "bfloat16"):
        whole = best[2].linear(x, weight, compute)
        assert error(whole, exact(x, weight)) < limit(weight, compute)
        assert torch.equal(best[1].linear(x, weight, compute), whole)
        assert torch.equal(best[3].linear(x[500:530], weight, compute), whole[500:530])


def test_wide_inputs_are_prepared_together(best: dict[int, Kernels]) -> None:
    rng = np.random.default_rng(6)
    weight = MAKERS["q4_0"](rng, 33, 9000)
    x = make.normal(rng, 3, weight.shape[1])
    one = best[1].linear(x, weight)
    assert torch.equal(best[3].linear(x, weight), one)
    assert torch.equal(best[2].linear(x[2:], weight), one[2:])


@pytest.mark.parametrize("compute", COMPUTES)
def test_stacks_mix_formats(best: dict[int, Kernels], compute: Compute) -> None:
    rng = np.random.default_rng(7)
    parts = [
        MAKERS[name](rng, rows, 256)
        for name, rows in zip(("q4_k", "q6_k", "bfloat16", "int4-g64"), (40, 17, 16, 3), strict=True)
    ]
    parts[1].bias = make.normal(rng, 17)
    weight = stack(parts)
    assert weight.bias is not None
    for count in (1, 4, 30):
        x = make.normal(rng, count, 256)
        found = best[2].linear(x, weight, compute)
        assert error(found, exact(x, weight)) < 2e-3
        start = 0
        for part in parts:
            rows = part.shape[0]
            alone = replace(part, bias=weight.bias[start : start + rows], prepared={})
            assert torch.equal(best[1].linear(x, alone, compute), found[:, start : start + rows])
            start += rows


def test_parts_share_prepared_inputs() -> None:
    rng = np.random.default_rng(8)
    packed = pack(stack([MAKERS[name](rng, 16, 256) for name in ("q4_k", "q5_k", "q6_k", "q4_0")]), "int8")
    assert len({part.input_key for part in packed.parts}) == 2  # steps of 32 and of 16


@pytest.mark.parametrize("name", ["int4-g64", "int8-g32-zeros", "nvfp4", "mxfp4-container"])
def test_only_schemes_of_weights_alone_keep_inputs_wide(best: dict[int, Kernels], name: str) -> None:
    rng = np.random.default_rng(13)
    weight = MAKERS[name](rng, 40, 320)
    x = make.normal(rng, 9, weight.shape[1]) * torch.logspace(-6, 6, 9).unsqueeze(1)
    narrow = replace(weight, wide_inputs=False, prepared={})
    for row in range(9):
        one = x[row : row + 1]
        assert error(best[1].linear(one, weight), exact(one, weight)) < 1e-8
        assert 1e-6 < error(best[1].linear(one, narrow), exact(one, narrow)) < 2e-3


@pytest.mark.parametrize("name", MAKERS)
def test_no_rows(kernels: Kernels, name: str) -> None:
    weight = MAKERS[name](np.random.default_rng(9), 20, 64)
    for compute in COMPUTES:
        assert kernels.linear(torch.empty(0, weight.shape[1]), weight, compute).shape == (0, 20)
    none = torch.empty(0, dtype=torch.int32)
    assert kernels.by["int8"].embedding(none, weight, 1.0).shape == (0, weight.shape[1])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rows", [0, 97])
def test_rounded_inputs_of_no_rows_and_of_many(kernels: Kernels, activation: str, rows: int) -> None:
    rng = np.random.default_rng([rows, len(activation)])
    weight = MAKERS[ACTIVATIONS[activation][0]](rng, int(rng.integers(1, 70)), int(rng.integers(1, 400)))
    weight.activation = activation
    weight.tensors |= {"input_scale": torch.tensor([0.02]), "input_global_scale": torch.tensor([500.0])}
    x = make.normal(rng, rows, weight.shape[1])
    found = kernels.linear(x, weight)
    assert found.shape == (rows, weight.shape[0])
    assert error(found, product(x, weight)) < limit(weight, "int8")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_have_the_type_of_the_inputs(best: dict[int, Kernels], dtype: torch.dtype) -> None:
    rng = np.random.default_rng(10)
    weight = MAKERS["q8_0"](rng, 20, 64)
    x = make.normal(rng, 3, 64).to(dtype)
    found = best[1].linear(x, weight)
    assert found.dtype == dtype
    assert error(found, exact(x.float(), weight)) < 1e-3


def batch_of(rows: Tensor, tokens: int) -> Batch:
    none = torch.zeros(0, dtype=torch.int32)
    sizes = torch.tensor([tokens, 1, len(rows)], dtype=torch.int32)
    return Batch(sizes, none, none, none, none, none, none, none.view(0, 0), none, rows)


@pytest.mark.parametrize("soft_cap", [None, 0.5])
def test_logits_gather_rows(kernels: Kernels, soft_cap: float | None) -> None:
    rng = np.random.default_rng(11)
    for name, count in (("q6_k", 3), ("bfloat16", 12), ("float32", 0), ("float32", 5)):
        head = MAKERS[name](rng, 77, 100)
        x = make.normal(rng, 30, head.shape[1])
        rows = torch.from_numpy(rng.integers(0, 30, count, dtype=np.int32))
        found = kernels.by["int8"].logits(x, batch_of(rows, 30), head, soft_cap)
        expected = reference_logits(x, batch_of(rows, 30), head, soft_cap)
        assert error(found, expected) < (1e-10 if name == "float32" else 1e-2)


def test_index_out_of_range_is_an_error() -> None:
    kernels = Kernels(None, 1)
    table = MAKERS["q4_0"](np.random.default_rng(0), 20, 32)
    with pytest.raises(PlatformError, match="out of range"):
        kernels.by["int8"].embedding(torch.tensor([20], dtype=torch.int32), table, 1.0)
    kernels.team.close()


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q6_k", "int4-g64", "bfloat16", "float16", "float32", "fp8-row"])
def test_nan_and_infinity_stay_in_their_rows(best: dict[int, Kernels], name: str) -> None:
    rng = np.random.default_rng(12)
    weight = MAKERS[name](rng, 33, 256)
    x = make.normal(rng, 9, weight.shape[1])
    clean = best[2].linear(x, weight)
    x[3, 40], x[6, 41] = float("nan"), float("inf")
    found = best[2].linear(x, weight)
    assert found[3].isnan().all()
    assert not found[6].isfinite().all()
    others = [r for r in range(9) if r not in (3, 6)]
    assert torch.equal(found[others], clean[others])


def test_uneven_groups_fall_to_float32_and_say_so(best: dict[int, Kernels], caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(13)
    weight = MAKERS["int4-act-order"](rng, 20, 64)
    weight.tensors["group_index"][:] = torch.from_numpy(rng.integers(0, 2, weight.shape[1], dtype=np.int32))
    weight.tensors["group_index"][:40] = 0
    x = make.normal(rng, 3, weight.shape[1])
    with caplog.at_level(logging.INFO, "headrace"):
        found = best[1].linear(x, weight)
    assert "int4 has no packed form" in caplog.text
    assert error(found, exact(x, weight)) < 1e-10


def test_unknown_schemes_fall_to_float32(best: dict[int, Kernels]) -> None:
    weight = Weight("theirs", (20, 50), {"weight": torch.randn(20, 50)}, lambda w: w.tensors["weight"] * 2)
    x = torch.randn(3, 50)
    assert error(best[1].linear(x, weight), exact(x, weight)) < 1e-10


@pytest.mark.parametrize("name", ["q4_k", "int4-act-order", "bfloat16", "nvfp4", "fp8-row", "iq4_nl"])
def test_dump_and_load_keep_the_bits(best: dict[int, Kernels], name: str) -> None:
    rng = np.random.default_rng(14)
    weight = stack([MAKERS[name](rng, 30, 256), MAKERS["q8_0"](rng, 20, 256)])
    weight.bias = make.normal(rng, 50)
    x = make.normal(rng, 5, 256)
    expected = best[1].linear(x, weight)
    header, buffers = pack(weight, "int8").dump()
    again = PackedWeight.load(json.loads(json.dumps(header)), [buffer.clone().flatten() for buffer in buffers])
    other = replace(weight, prepared={"cpu:packed:int8": again})
    assert torch.equal(best[1].linear(x, other), expected)
    assert again.nbytes == pack(weight, "int8").nbytes


def test_each_arithmetic_has_its_own_form(best: dict[int, Kernels]) -> None:
    weight = MAKERS["q4_0"](np.random.default_rng(15), 20, 64)
    x = torch.randn(2, 64)
    best[1].linear(x, weight, "int8")
    assert error(best[1].linear(x, weight, "float32"), exact(x, weight)) < 1e-10


def test_four_bit_weights_stay_small() -> None:
    weight = MAKERS["q4_0"](np.random.default_rng(16), 256, 1024)
    assert pack(weight, "int8").nbytes == weight.nbytes
    weight = MAKERS["q4_k"](np.random.default_rng(16), 256, 1024)
    assert pack(weight, "int8").nbytes < 1.04 * weight.nbytes


def test_arena_aligns_and_grows() -> None:
    arena = WeightArena(4096)
    pieces = [arena.take(size) for size in (100, 3000, 2000, 10000, 1)]
    assert [len(piece) for piece in pieces] == [100, 3000, 2000, 10000, 1]
    assert all(piece.data_ptr() % 64 == 0 for piece in pieces)
    for value, piece in enumerate(pieces):
        piece.fill_(value)
    assert all(bool((piece == value).all()) for value, piece in enumerate(pieces))


def test_what_is_unknown_is_refused() -> None:
    weight = dense(torch.randn(16, 32), "the.weight")
    with pytest.raises(PlatformError, match="'int3'"):
        pack(weight, "int3")  # type: ignore[arg-type]
    weight.activation = "int2_token"
    with pytest.raises(PlatformError, match=r"the\.weight.*'int2_token'"):
        pack(weight, "int8")
