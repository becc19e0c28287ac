"""The scans over a recurrent state by interpreter: results and pools against the references, and to the bit however a
prompt is cut."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from triton_support import BY_NAME, CPU, operator, rng, run

from headrace.conformance.operators_tier import nmse
from headrace.kernels import random
from headrace.kernels.recurrence import CHUNK

Tensor = torch.Tensor
NAMES = ("gated_delta_rule", "mamba2_scan", "causal_conv1d")
PER_TOKEN = ("qkv", "decay", "strength", "xbc", "dt", "x")
LIMITS = {"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5}


def _cost(given: dict[str, Any]) -> int:
    """Chunks of the longest way round, over all heads."""
    heads = given["state"].shape[1] if "pending" in given else 4
    return len(given["batch"].positions) * heads


def _cases(name: str, dtype: str, count: int) -> list[dict[str, Any]]:
    draws = (BY_NAME[name].generate(rng(seed), CPU, dtype) for seed in range(400))
    found = [given for given in draws if _cost(given) <= 40][:count]
    assert len(found) == count
    return found


def _same_pools(found: dict[str, Any], wanted: dict[str, Any], limit: float) -> None:
    """States; and of the unfinished chunk's rows every bit."""
    assert nmse(found["state"].numpy(), wanted["state"].numpy()) <= limit
    if "pending" in wanted:
        batch = wanted["batch"]
        for slot, context in zip(batch.slots.tolist(), batch.context_lens.tolist(), strict=True):
            rows = slice(0, context % CHUNK)
            assert torch.equal(found["pending"][slot, rows], wanted["pending"][slot, rows])


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", NAMES)
def test_over_the_operators_generator(name: str, dtype: str) -> None:
    assert BY_NAME[name].tolerance[dtype] == LIMITS[dtype]
    for given in _cases(name, dtype, 3):
        wanted = copy.deepcopy(given)
        own, _ = run(BY_NAME[name], wanted, LIMITS[dtype])  # the check steps the reference's pools
        _same_pools(own, wanted, LIMITS[dtype])


@pytest.mark.parametrize("name", NAMES)
def test_no_sequence_at_all(name: str) -> None:
    draws = (BY_NAME[name].generate(rng(seed), CPU, "float32") for seed in range(100))
    given = next(a for a in draws if not len(a["batch"].slots))
    own, found = run(BY_NAME[name], given, 0.0)
    assert len(found) == 0
    assert torch.equal(own["state"], given["state"])


def _part(given: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    """Tokens first … last - 1 of the first sequence alone, on the same pools."""
    batch, rows, count = given["batch"], slice(first, last), last - first
    alone = replace(
        batch, sizes=torch.tensor([count, 1, 0], dtype=torch.int32), positions=batch.positions[rows],
        token_seq=torch.zeros(count, dtype=torch.int32), query_start=torch.tensor([0, count], dtype=torch.int32),
        context_lens=batch.positions[rows][-1:] + 1, block_tables=batch.block_tables[:1], slots=batch.slots[:1],
    )  # fmt: skip
    return {**given, "batch": alone, **{key: given[key][rows] for key in PER_TOKEN if key in given}}


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", NAMES)
def test_cut_anywhere_and_decoded_the_bits_are_the_same(name: str, dtype: str) -> None:
    """A prompt in company, against the same in a chunk, two decodes and a chunk, alone: results, state, kept rows."""
    given = _given(name, dtype, random.Shape((37, 5), (20, 3), 16))
    whole, pools, function = copy.deepcopy(given), copy.deepcopy(given), operator(name)
    want = function(**whole)
    for first, last in ((0, 9), (9, 10), (10, 11), (11, 30), (30, 37)):
        assert torch.equal(function(**_part(pools, first, last)), want[first:last]), (first, last)
    slot = int(given["batch"].slots[0])
    assert torch.equal(pools["state"][slot], whole["state"][slot])
    assert "pending" not in given or torch.equal(
        pools["pending"][slot, : 57 % CHUNK], whole["pending"][slot, : 57 % CHUNK]
    )


def _given(name: str, dtype: str, shape: random.Shape) -> dict[str, Any]:
    """A draw of the generator with two heads, for another batch."""
    draws = (BY_NAME[name].generate(rng(seed), CPU, dtype) for seed in range(400))
    draw = next(
        given
        for given in draws
        if len(given["batch"].slots) == 2
        and int(given["batch"].sizes[0]) > 0
        and (name == "causal_conv1d" or given["state"].shape[1] == 2)
    )
    tokens = sum(shape.fresh)
    fresh = {
        key: draw[key][torch.from_numpy(rng(1).integers(0, len(draw[key]), tokens))]
        * random.normal(rng(2), tokens, 1, device=CPU).abs().clamp(0.5, 1.0).to(draw[key].dtype)
        for key in PER_TOKEN if key in draw
    }  # fmt: skip
    return {**draw, **fresh, "batch": random.batch(rng(3), shape, CPU)}


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_nothing(name: str) -> None:
    """Tokens and sequences past the true sizes, as a captured graph has them: they share a spare slot."""
    given = _given(name, "float32", random.Shape((3, 1), (20, 40), 16))
    plain, batch = copy.deepcopy(given), given["batch"]
    want = operator(name)(**plain)
    zeros = torch.zeros(3, dtype=torch.int32)
    padded = replace(
        batch, positions=torch.cat([batch.positions, zeros]), token_seq=torch.cat([batch.token_seq, zeros]),
        query_start=torch.cat([batch.query_start, batch.query_start[-1:].repeat(3)]),
        context_lens=torch.cat([batch.context_lens, zeros]), slots=torch.cat([batch.slots, zeros]),
    )  # fmt: skip
    wide = {key: torch.cat([given[key], given[key][:3]]) for key in PER_TOKEN if key in given}
    own = {**copy.deepcopy(given), **wide, "batch": padded}
    assert torch.equal(operator(name)(**own)[:4], want)
    assert torch.equal(own["state"], plain["state"])
    assert "pending" not in given or torch.equal(own["pending"], plain["pending"])


@pytest.mark.parametrize("name", NAMES)
def test_a_new_sequence_ignores_the_old_contents_of_its_slot(name: str) -> None:
    given = _given(name, "float32", random.Shape((20, 2), (0, 0), 16))
    want, dirty = operator(name)(**copy.deepcopy(given)), copy.deepcopy(given)
    for pool in ("state", "pending"):
        if pool in dirty:
            dirty[pool].fill_(torch.nan)
    assert torch.equal(operator(name)(**dirty), want)


def test_the_delta_rule_without_normalising_and_with_repeated_keys() -> None:
    """The same key over and over at full strength: what cancels in an inverse by powers must not here."""
    given = _given("gated_delta_rule", "float32", random.Shape((37, 5), (20, 3), 16))
    given |= {
        "normalise": False,
        "strength": torch.ones_like(given["strength"]),
        "decay": torch.zeros_like(given["decay"]),
    }
    _, heads, dk, _ = given["state"].shape
    skip = given["num_k_heads"] * dk
    key = torch.nn.functional.normalize(random.normal(rng(9), given["num_k_heads"], dk, device=CPU), dim=1).flatten()
    given["qkv"][:, skip : 2 * skip] = key
    given["pending"][..., :skip] = key
    given["pending"][..., -2 * heads :] = torch.cat([torch.zeros(heads), torch.ones(heads)])
    run(BY_NAME["gated_delta_rule"], given, 1e-9)


def test_softplus_is_accurate_at_both_ends() -> None:
    """Steps of e^-12 must not vanish, and one of 60 must not overflow."""
    given = _given("mamba2_scan", "float32", random.Shape((9, 2), (0, 16), 16))
    given |= {"dt_bias": None, "d": None, "dt_limit": (0.0, float("inf"))}
    for value in (-12.0, -30.0, 19.9, 60.0):
        run(BY_NAME["mamba2_scan"], {**given, "dt": torch.full_like(given["dt"], value)}, 1e-9)
