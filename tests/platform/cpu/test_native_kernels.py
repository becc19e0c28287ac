"""Every native kernel against its reference on the operator's own random inputs, for every instruction set that runs
here."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from wild_lengths import BY_NAME, CASES, wild

from headrace.errors import PlatformError
from headrace.kernels import registry
from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import SampleOutputs
from headrace.platforms.cpu import native
from headrace.platforms.cpu.native_drafting import NativeDrafting
from headrace.platforms.cpu.native_launch import EagerLauncher
from headrace.platforms.cpu.native_ops import NativeOps
from headrace.platforms.cpu.native_team import Team

CPU = torch.device("cpu")
SPECS = {spec.name: spec for spec in (*registry.OPS, *registry.DRAFTING)}
# What bf16 products cost: the kernels multiply caches of two bytes or fewer as bfloat16 where the processor does.
COARSE = 5e-5


@pytest.fixture(scope="module", params=native.usable())
def ops(request: pytest.FixtureRequest) -> Iterator[NativeOps]:
    team = Team(native.load(request.param), 2)
    yield NativeOps(EagerLauncher(team))
    team.close()


def error(mine: torch.Tensor, reference: torch.Tensor) -> float:
    """Normalised mean squared error."""
    assert mine.shape == reference.shape
    assert mine.dtype == reference.dtype
    a, b = mine.double(), reference.double()
    equal = (a == b) | (a.isnan() & b.isnan())
    scale = float(b[b.isfinite()].square().sum())
    wrong = torch.where(equal, 0.0, a - b).square().sum()
    return float(wrong) / max(scale, 1e-30)


def results(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, SampleOutputs):
        return [getattr(value, f.name) for f in fields(value)]
    return list(value)


NAMES = ["resolve_tokens", "rms_norm", "add_rms_norm", "gated_activation", "rotary_cache", "attention"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_matches_reference(ops: NativeOps, name: str, dtype: str) -> None:
    spec, rng = SPECS[name], np.random.default_rng([len(name), len(dtype)])
    for _ in range(12):
        mine = spec.generate(rng, CPU, dtype)
        theirs = copy.deepcopy(mine)
        found, expected = results(getattr(ops, name)(**mine)), results(spec.reference(**theirs))
        limit = spec.tolerance.get(dtype, spec.tolerance["float32"])
        if name == "attention" and mine["kv"].layout.dtype != "float32":
            limit = max(limit, COARSE)
        for a, b in zip(found, expected, strict=True):
            assert error(a, b) <= limit
        for key, value in mine.items():
            if isinstance(value, TorchKV):
                for x, y in zip(value.keys + value.values, theirs[key].keys + theirs[key].values, strict=True):
                    assert error(x.float(), y.float()) <= 1e-4
            if key == "history":
                assert torch.equal(value, theirs[key])


@pytest.mark.parametrize("name", [spec.name for spec in registry.DRAFTING])
def test_drafting_matches_the_reference(ops: NativeOps, name: str) -> None:
    spec, rng = SPECS[name], np.random.default_rng(len(name))
    operator = NativeDrafting(ops, lambda: None).table()[name]
    for _ in range(60):
        mine = spec.generate(rng, CPU, "float32")
        theirs = copy.deepcopy(mine)
        for found, expected in zip(results(operator(**mine)), results(spec.reference(**theirs)), strict=True):
            assert torch.equal(found, expected)
        assert torch.equal(mine["history"], theirs["history"])


@pytest.mark.parametrize("length", [0, 1000])
@pytest.mark.parametrize("isa", native.usable())
def test_a_length_outside_of_the_history_is_an_error(isa: str, length: int) -> None:
    # With a team of its own: no kernel runs after such an error.
    team = Team(native.load(isa), 1)
    ops = NativeOps(EagerLauncher(team))
    given = SPECS["place"].generate(np.random.default_rng(4), CPU, "float32")
    given["lengths"] = torch.full_like(given["lengths"], length)
    with pytest.raises(PlatformError):
        NativeDrafting(ops, lambda: None).place(**given)
    team.close()


@pytest.mark.parametrize(("name", "length"), CASES)
def test_lengths_that_cannot_be_are_errors_or_have_no_drafts(name: str, length: float) -> None:
    team = Team(native.load(), 1)
    given = wild(name, length)
    operator = NativeDrafting(NativeOps(EagerLauncher(team)), lambda: None).table()[name]
    if name == "read_drafts":
        assert torch.equal(operator(**given), BY_NAME[name].reference(**given))
    else:
        with pytest.raises(PlatformError):
            operator(**given)
    team.close()


def test_sample_matches_reference(ops: NativeOps) -> None:
    spec, rng = SPECS["sample"], np.random.default_rng(5)
    for _ in range(60):
        mine = spec.generate(rng, CPU, "float32")
        theirs = copy.deepcopy(mine)
        found, expected = ops.sample(**mine), spec.reference(**theirs)
        assert torch.equal(found.tokens, expected.tokens)
        assert torch.equal(mine["inputs"].history, theirs["inputs"].history)
        if mine["num_logprobs"] >= 0 and len(found.tokens):
            assert torch.equal(found.ranks, expected.ranks)
            assert torch.equal(found.top_ids, expected.top_ids)
            torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(found.top_logprobs, expected.top_logprobs, rtol=1e-5, atol=1e-5)
