"""The operators that draft and verify on the device, by interpreter: the references' bits."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from triton_support import BY_NAME, CPU, operator, outputs, rng
from wild_lengths import CASES, wild

from headrace.kernels.ops import Batch
from headrace.kernels.registry import DRAFTING, HEAD_DRAFTING
from headrace.types import GIVEN

NAMES = sorted({spec.name for spec in (*DRAFTING, *HEAD_DRAFTING)})


def drawn(name: str, seed: int) -> dict[str, Any]:
    return BY_NAME[name].generate(rng(seed), CPU, "float32")


def check(name: str, arguments: dict[str, Any]) -> None:
    own = copy.deepcopy(arguments)
    found, wanted = operator(name)(**own), BY_NAME[name].reference(**arguments)
    for got, want in zip(outputs(found), outputs(wanted), strict=True):
        assert got.dtype == want.dtype == torch.int32
        assert torch.equal(got, want)
    assert torch.equal(own["history"], arguments["history"])


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories in several parts of several blocks, rows and tokens in several programs."""
    from headrace.kernels.accept import triton as accept
    from headrace.kernels.ngram import triton as ngram
    from headrace.kernels.place import triton as place
    from headrace.kernels.shift import triton as shift

    monkeypatch.setattr(ngram, "_SPLIT", 32)
    monkeypatch.setattr(ngram, "_BLOCK", 16)
    for module in (place, accept, shift):
        monkeypatch.setattr(module, "_BLOCK", 4)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", NAMES)
def test_over_the_operators_generator(name: str, seed: int) -> None:
    check(name, drawn(name, seed))


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("seed", range(20, 32))
@pytest.mark.parametrize("name", NAMES)
def test_in_several_parts(name: str, seed: int) -> None:
    check(name, drawn(name, seed))


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_nothing(name: str, seed: int) -> None:
    """As a captured graph has it: `engine.runner` pads like this."""
    arguments = drawn(name, seed)
    spare = len(arguments["history"])
    arguments["history"] = longer(arguments["history"], spare + 1, 0)
    arguments["batch"] = padded(arguments["batch"], spare)
    for key in {"lengths", "bounds"} & arguments.keys():
        arguments[key] = longer(arguments[key], 8, GIVEN)
    for key, size in (("drafts", 8), ("position", 64), ("tokens", 64)):
        if key in arguments:
            arguments[key] = longer(arguments[key], size, 0)
    check(name, arguments)


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize(("name", "length"), CASES)
def test_lengths_that_cannot_be_place_nothing(name: str, length: float) -> None:
    check(name, wild(name, length))


@pytest.mark.parametrize("split", [64, 4096])
def test_long_matches_in_a_long_history(split: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A passage comes again, of more tokens than are told apart: the latest place counts, also across parts."""
    from headrace.kernels.ngram import triton as module

    monkeypatch.setattr(module, "_SPLIT", split)
    monkeypatch.setattr(module, "_BLOCK", 64)
    arguments = next(a for a in (drawn("ngram", seed) for seed in range(99)) if len(a["lengths"]) == 2)
    length, slots = 230, arguments["batch"].slots.long()
    history = torch.from_numpy(rng(7).integers(0, 900, (4, length + 20))).int()
    for start in (10, 60, 120, length - 40):
        history[:, start : start + 40] = history[0, :40].clone()
    history[slots[0], 120] = 901  # here the match is shorter, but not below the 32 that are told apart
    history[slots[1], 140] = 901  # here it is
    ends = torch.tensor([0, 9, 18], dtype=torch.int32)
    batch, lengths = replace(arguments["batch"], query_start=ends), torch.full((2,), length, dtype=torch.int32)
    given = {"batch": batch, "lengths": lengths, "history": history, "most": 8}
    check("ngram", given)
    drafts = operator("ngram")(**given)
    assert torch.equal(drafts[0], history[slots[0], 160:168])
    assert torch.equal(drafts[1], history[slots[1], 100:108])


@pytest.mark.parametrize("name", NAMES)
def test_a_step_without_sequences(name: str) -> None:
    arguments = next(a for a in (drawn(name, seed) for seed in range(99)) if not len(a["batch"].slots))
    check(name, arguments)


def padded(batch: Batch, spare: int) -> Batch:
    sizes = {"sizes": 3, "query_start": 9, "context_lens": 8, "block_tables": 8, "slots": 8}
    fills = {"slots": spare, "query_start": int(batch.query_start[-1])}
    wide = {
        field.name: longer(getattr(batch, field.name), sizes.get(field.name, 64), fills.get(field.name, 0))
        for field in fields(batch)
    }
    return replace(batch, **wide)


def longer(x: torch.Tensor, size: int, fill: int) -> torch.Tensor:
    out = torch.full((size, *x.shape[1:]), fill, dtype=x.dtype)
    out[: len(x)] = x
    return out
