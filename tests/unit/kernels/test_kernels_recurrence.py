"""The scans over a recurrent state: against the recurrence in float64, against transformers, and to the bit however a
prompt is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from headrace.kernels import random
from headrace.kernels.ops import Batch
from headrace.kernels.recurrence import CHUNK
from headrace.kernels.registry import OPTIONAL
from headrace.kernels.spec import OpSpec

CPU = torch.device("cpu")
Tensor = torch.Tensor
SPECS: dict[str, OpSpec] = {spec.name: spec for spec in OPTIONAL}
PER_TOKEN = ("qkv", "decay", "strength", "xbc", "dt", "x")
POOLS = ("state", "pending")


def arguments(name: str, seed: int, dtype: str = "float32") -> dict[str, Any]:
    return SPECS[name].generate(np.random.default_rng(seed), CPU, dtype)


def copied(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if key in POOLS else value for key, value in given.items()}


def part(given: dict[str, Any], sequence: int, first: int, last: int) -> dict[str, Any]:
    """Tokens first … last - 1 of one sequence alone, on the same pools."""
    batch: Batch = given["batch"]
    start, seq = int(batch.query_start[sequence]), slice(sequence, sequence + 1)
    rows, count = slice(start + first, start + last), last - first
    alone = replace(
        batch, sizes=torch.tensor([count, 1, 0], dtype=torch.int32), positions=batch.positions[rows],
        token_seq=torch.zeros(count, dtype=torch.int32), query_start=torch.tensor([0, count], dtype=torch.int32),
        context_lens=batch.positions[rows][-1:] + 1, block_tables=batch.block_tables[seq], slots=batch.slots[seq],
    )  # fmt: skip
    return {**given, "batch": alone, **{key: given[key][rows] for key in PER_TOKEN if key in given}}


def _start(given: dict[str, Any], sequence: int) -> tuple[Tensor, Tensor, int]:
    """(state, rows held, tokens before) of a sequence."""
    batch: Batch = given["batch"]
    count = int(batch.query_start[sequence + 1] - batch.query_start[sequence])
    before, slot = int(batch.context_lens[sequence]) - count, int(batch.slots[sequence])
    state = given["state"][slot].double() * (before >= CHUNK)
    return state, given["pending"][slot, : before % CHUNK].double(), before


def _delta(given: dict[str, Any], sequence: int) -> list[Tensor]:
    """o of each new token, in float64, a head at a time."""
    state, held, _ = _start(given, sequence)
    batch, k_heads, (_, heads, dk, dv) = given["batch"], given["num_k_heads"], given["state"].shape
    rows = slice(int(batch.query_start[sequence]), int(batch.query_start[sequence + 1]))
    new = torch.cat([given["qkv"][rows, k_heads * dk :], given["decay"][rows], given["strength"][rows]], 1).double()
    found = []
    for step, row in enumerate([*held, *new]):
        token = rows.start + step - len(held)
        outs = []
        for head in range(heads):
            at = head // (heads // k_heads) * dk
            k, v = row[at : at + dk], row[k_heads * dk + head * dv :][:dv]
            k = k / (k @ k + 1e-6).sqrt() if given["normalise"] else k
            s = state[head] * row[-2 * heads + head].exp()
            state[head] = s + row[-heads + head] * torch.outer(k, v - k @ s)
            if step >= len(held):
                q = given["qkv"][token, at : at + dk].double()
                q = q / (q @ q + 1e-6).sqrt() if given["normalise"] else q
                outs.append(given["scale"] * (q @ state[head]))
        if outs:
            found.append(torch.cat(outs))
    return found


def _ssd(given: dict[str, Any], sequence: int) -> list[Tensor]:
    """y of each new token, in float64, a head at a time."""
    state, held, _ = _start(given, sequence)
    batch, groups, (_, heads, size, n) = given["batch"], given["num_groups"], given["state"].shape
    rows = slice(int(batch.query_start[sequence]), int(batch.query_start[sequence + 1]))
    kept = heads * size + groups * n
    new, found = torch.cat([given["xbc"][rows, :kept], given["dt"][rows]], 1).double(), []
    for step, row in enumerate([*held, *new]):
        token, outs = rows.start + step - len(held), []
        for head in range(heads):
            group = head // (heads // groups)
            x, b = row[head * size :][:size], row[heads * size + group * n :][:n]
            bias = 0.0 if given["dt_bias"] is None else given["dt_bias"][head].double()
            rate = functional.softplus(row[kept + head] + bias).clamp(*given["dt_limit"])
            state[head] = (rate * given["a"][head]).exp() * state[head] + rate * torch.outer(x, b)
            if step >= len(held):
                skip = 0.0 if given["d"] is None else given["d"][head].double() * x
                outs.append(state[head] @ given["xbc"][token, kept + group * n :][:n].double() + skip)
        if outs:
            found.append(torch.cat(outs))
    return found


def _conv(given: dict[str, Any], sequence: int) -> list[Tensor]:
    batch, weight = given["batch"], given["weight"].double()
    rows = slice(int(batch.query_start[sequence]), int(batch.query_start[sequence + 1]))
    before = int(batch.context_lens[sequence]) - (rows.stop - rows.start)
    old = given["state"][int(batch.slots[sequence])].double()
    old[: max(len(old) - before, 0)] = 0.0
    line = torch.cat([old, given["x"][rows].double()])
    bias = None if given["bias"] is None else given["bias"].double()
    out = functional.conv1d(line.T[None], weight[:, None], bias, groups=len(weight))[0].T
    return list(functional.silu(out) if given["silu"] else out)


NAIVE: dict[str, Callable[[dict[str, Any], int], list[Tensor]]] = {
    "gated_delta_rule": _delta, "mamba2_scan": _ssd, "causal_conv1d": _conv,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", NAIVE)
def test_is_the_recurrence(name: str, seed: int) -> None:
    given = arguments(name, seed)
    found = SPECS[name].reference(**copied(given))
    present = given["batch"].query_start.diff().nonzero().flatten().tolist()
    want = [row for sequence in present for row in NAIVE[name](given, sequence)]
    assert len(want) == len(found)
    for got, row in zip(found, want, strict=True):
        torch.testing.assert_close(got.double(), row, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", NAIVE)
def test_results_have_the_inputs_type(name: str, dtype: str) -> None:
    given = next(a for a in (arguments(name, seed, dtype) for seed in range(20)) if len(a["batch"].slots) > 1)
    found = SPECS[name].reference(**copied(given))
    wide = {key: value.float() if key in PER_TOKEN else value for key, value in copied(given).items()}
    assert found.dtype == random.DTYPES[dtype]
    assert torch.equal(found, SPECS[name].reference(**wide).to(found.dtype))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", NAIVE)
def test_the_bits_are_the_same_alone_and_for_every_split(name: str, seed: int) -> None:
    """Every sequence of a batch alone, in chunks of random length and one token at a time: results and what is kept."""
    given, rng = arguments(name, seed), np.random.default_rng(seed)
    whole, pools = copied(given), copied(given)
    want = SPECS[name].reference(**whole)
    batch: Batch = given["batch"]
    for sequence, start in enumerate(batch.query_start[:-1].tolist()):
        count, first = int(batch.query_start[sequence + 1]) - start, 0
        while first < count:
            last = min(first + int(rng.choice([1, int(rng.integers(1, 25))])), count)
            found = SPECS[name].reference(**part(pools, sequence, first, last))
            assert torch.equal(found, want[start + first : start + last])
            first = last
    assert torch.equal(pools["state"], whole["state"])
    for slot, context in zip(batch.slots.tolist(), batch.context_lens.tolist(), strict=True):
        for pool in ("pending",) if "pending" in given else ():
            kept = slice(0, context % CHUNK)
            assert torch.equal(pools[pool][slot, kept], whole[pool][slot, kept])


@pytest.mark.parametrize("name", NAIVE)
def test_a_new_sequence_ignores_the_old_contents_of_its_slot(name: str) -> None:
    draws = (arguments(name, seed) for seed in range(100))
    given = next(
        a for a in draws if len(a["batch"].slots) == 1 and len(a["batch"].positions) == a["batch"].context_lens
    )
    want, dirty = SPECS[name].reference(**copied(given)), copied(given)
    for pool in POOLS:
        if pool in dirty:
            dirty[pool].fill_(torch.nan)
    assert torch.equal(SPECS[name].reference(**dirty), want)


@pytest.mark.parametrize("name", NAIVE)
def test_other_slots_are_unchanged(name: str) -> None:
    given = next(a for a in (arguments(name, seed) for seed in range(20)) if len(a["batch"].slots) > 1)
    after = copied(given)
    SPECS[name].reference(**after)
    spare = [slot for slot in range(len(given["state"])) if slot not in given["batch"].slots.tolist()]
    assert len(spare) == 2
    for pool in POOLS:
        assert pool not in given or torch.equal(after[pool][spare], given[pool][spare])
