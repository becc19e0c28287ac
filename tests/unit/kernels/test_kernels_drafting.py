"""The operators with which a device drafts and verifies: the references against plain readings, and with padding."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
import torch
from wild_lengths import CASES, kept, wild

from headrace.kernels.accept.reference import accept
from headrace.kernels.ngram.generate import PlacedStep, draw_step
from headrace.kernels.ngram.reference import LONGEST, SHORTEST, ngram
from headrace.kernels.ops import Batch
from headrace.kernels.place.reference import place
from headrace.kernels.read_drafts.reference import read_drafts
from headrace.kernels.registry import DRAFTING, HEAD_DRAFTING
from headrace.types import GIVEN, NO_TOKEN, ON_DEVICE

CPU = torch.device("cpu")
BY_NAME = {spec.name: spec for spec in (*DRAFTING, *HEAD_DRAFTING)}


def drawn(seed: int) -> PlacedStep:
    return draw_step(np.random.default_rng(seed), CPU)


def known(step: PlacedStep, seq: int) -> int:
    length = int(step.lengths[seq])
    return int(step.history[step.batch.slots[seq], -1]) if length == ON_DEVICE else length


def continuation(text: list[int], most: int) -> list[int]:
    """What followed the latest of the longest matches."""
    best, after = 0, 0
    for stop in range(1, len(text)):
        length = 0
        while length < min(stop, LONGEST) and text[stop - 1 - length] == text[len(text) - 1 - length]:
            length += 1
        if length >= max(best, SHORTEST):
            best, after = length, stop
    if not best:
        return [NO_TOKEN] * most
    longer = list(text)
    for at in range(most):
        longer.append(longer[after + at])
    return longer[len(text) :]


@pytest.mark.parametrize("seed", range(40))
def test_drafts_continue_the_longest_match(seed: int) -> None:
    step = drawn(seed)
    found = ngram(step.batch, step.lengths, step.history, step.most).tolist()
    counts = np.diff(step.batch.query_start.numpy())
    for seq, drafts in enumerate(found):
        if step.lengths[seq] == GIVEN or counts[seq] < 2:
            assert drafts == [NO_TOKEN] * step.most
        else:
            text = step.history[step.batch.slots[seq], : known(step, seq)].tolist()
            assert drafts == continuation(text, step.most)


@pytest.mark.parametrize("seed", range(40))
def test_rows_lie_behind_the_known_tokens(seed: int) -> None:
    step = drawn(seed)
    batch, lengths = step.batch, [known(step, seq) for seq in range(len(step.lengths))]
    drafts = ngram(batch, step.lengths, step.history, step.most)
    placed = place(batch, step.lengths, drafts, step.position, step.history, step.block_size)
    ends = batch.query_start.tolist()
    for seq, length in enumerate(lengths):
        part = slice(ends[seq], ends[seq + 1])
        rows = [at for at, token in enumerate(batch.rows.tolist()) if ends[seq] <= token < ends[seq + 1]]
        if step.lengths[seq] == GIVEN:
            for name in ("token_ids", "positions", "slot_mapping"):
                assert torch.equal(getattr(placed, name)[part], getattr(batch, name)[part])
            assert placed.context_lens[seq] == batch.context_lens[seq]
            continue
        count = ends[seq + 1] - ends[seq]
        positions = list(range(length - 1, length - 1 + count))
        assert placed.positions[part].tolist() == positions
        assert placed.token_ids[part].tolist() == [NO_TOKEN, *drafts[seq, : count - 1].clamp(min=0).tolist()]
        table, size = batch.block_tables[seq].tolist(), step.block_size
        assert placed.slot_mapping[part].tolist() == [table[p // size] * size + p % size for p in positions]
        assert placed.context_lens[seq] == length - 1 + count
        assert placed.position[rows].tolist() == [p + 1 for p in positions]
        assert step.history[batch.slots[seq], -1] == length


@pytest.mark.parametrize("seed", range(40))
def test_what_was_sampled_counts(seed: int) -> None:
    given = BY_NAME["accept"].generate(np.random.default_rng(seed), CPU, "float32")
    batch, lengths, tokens = given["batch"], given["lengths"].tolist(), given["tokens"].tolist()
    before = given["history"].clone()
    found = accept(**given).tolist()
    ends, rows = batch.query_start.tolist(), batch.rows.tolist()
    for seq, (count, made) in enumerate(found):
        grown = given["history"][batch.slots[seq], -1] - before[batch.slots[seq], -1]
        if lengths[seq] == GIVEN:
            assert (count, made, grown) == (0, 0, 0)
            continue
        places = given["drafts"][seq, : ends[seq + 1] - ends[seq] - 1].tolist()
        drafts = list(takewhile(lambda one: one != NO_TOKEN, places))
        sampled = tokens[rows.index(ends[seq]) :]
        right = 0
        while right < len(drafts) and drafts[right] == sampled[right]:
            right += 1
        assert (count, made, grown) == (right + 1, len(drafts), right + 1)


@pytest.mark.parametrize("seed", range(40))
def test_drafts_are_read_behind_the_known_tokens(seed: int) -> None:
    step, rng = drawn(seed), np.random.default_rng(seed)
    # A pass that had no token to choose leaves what was there before, which may be no token.
    step.history[:, :-1][torch.from_numpy(rng.random(step.history[:, :-1].shape) < 0.05)] = NO_TOKEN
    found = read_drafts(step.batch, step.lengths, step.history, step.most).tolist()
    counts = np.diff(step.batch.query_start.numpy())
    for seq, drafts in enumerate(found):
        text, wanted = step.history[step.batch.slots[seq], :-1].tolist(), list[int]()
        if step.lengths[seq] != GIVEN:
            wanted = text[known(step, seq) :][: counts[seq] - 1]
        until = wanted.index(NO_TOKEN) if NO_TOKEN in wanted else len(wanted)
        assert drafts == (wanted[:until] + [NO_TOKEN] * step.most)[: step.most]


@pytest.mark.parametrize("seed", range(40))
def test_a_pass_moves_to_where_the_device_knows_its_rows(seed: int) -> None:
    given = BY_NAME["shift"].generate(np.random.default_rng(seed), CPU, "float32")
    batch, bounds, size = given["batch"], given["bounds"].tolist(), given["size"]
    before = given["history"].clone()
    found = BY_NAME["shift"].reference(**given)
    seq, table = batch.token_seq.tolist(), batch.block_tables.tolist()
    lengths = given["history"][batch.slots.long(), -1].tolist()
    back = [bound - length if bound >= 0 else 0 for bound, length in zip(bounds, lengths, strict=True)]
    wanted = [at - back[own] for at, own in zip(batch.positions.tolist(), seq, strict=True)]
    assert found.positions.tolist() == wanted
    assert found.next_positions.tolist() == [at + 1 for at in wanted]
    places = [table[own][at // size] * size + at % size for at, own in zip(wanted, seq, strict=True)]
    assert found.slot_mapping.tolist() == places
    assert found.context_lens.tolist() == [n - less for n, less in zip(batch.context_lens.tolist(), back, strict=True)]
    rows = [back[seq[at]] for at in batch.rows.tolist()]
    assert found.position.tolist() == [at - less for at, less in zip(given["position"].tolist(), rows, strict=True)]
    assert torch.equal(given["history"], before)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_padding_changes_nothing(name: str, seed: int) -> None:
    """As compilers of complete steps see it: `engine.runner` pads like this, and sequences past the last are empty."""
    given = BY_NAME[name].generate(np.random.default_rng(seed), CPU, "float32")
    spare = len(given["history"])
    given["history"] = torch.cat([given["history"], torch.zeros(1, given["history"].shape[1], dtype=torch.int32)])
    wide = copy.deepcopy(given)
    wide["batch"] = padded(wide["batch"], 8, spare)
    sizes = {"lengths": (8, GIVEN), "bounds": (8, GIVEN), "drafts": (8, 0), "position": (60, 0), "tokens": (60, 0)}
    for key in sizes.keys() & wide.keys():
        wide[key] = longer(wide[key], *sizes[key])
    wanted, found = (each(BY_NAME[name].reference(**arguments)) for arguments in (given, wide))
    for want, got in zip(wanted, found, strict=True):
        assert torch.equal(got[: len(want)], want)
    assert torch.equal(wide["history"], given["history"])


@pytest.mark.parametrize(("name", "length"), CASES)
def test_lengths_that_cannot_be_place_nothing(name: str, length: float) -> None:
    given = wild(name, length)
    if name in ("place", "shift"):
        calm = kept(given)
        for found, wanted in zip(*(BY_NAME[name].reference(**each) for each in (given, calm)), strict=True):
            assert torch.equal(found, wanted)
        assert torch.equal(given["history"], calm["history"])
    else:
        found = BY_NAME[name].reference(**given)
        assert int(found.max()) <= int(given["history"][:, :-1].max())


def padded(batch: Batch, seqs: int, spare: int) -> Batch:
    sizes = {"sizes": 3, "query_start": seqs + 1, "context_lens": seqs, "block_tables": seqs, "slots": seqs}
    fills: dict[str, Any] = {"slots": spare, "query_start": int(batch.query_start[-1])}
    wide = {
        field.name: longer(getattr(batch, field.name), sizes.get(field.name, 60), fills.get(field.name, 0))
        for field in fields(batch)
    }
    return replace(batch, **wide)


def longer(x: torch.Tensor, size: int, fill: int) -> torch.Tensor:
    out = torch.full((size, *x.shape[1:]), fill, dtype=x.dtype)
    out[: len(x)] = x
    return out


def each(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)
