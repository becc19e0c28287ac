"""A model that drafts, and sequences that wait to go on: their blocks serve others, and themselves as far as they are
still there."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from headrace.core.drafts import DraftRow
from headrace.engine.head_drafter import HeadDrafter
from headrace.engine.head_plans import HeadPass
from headrace.errors import PlatformError
from headrace.types import Request, SamplingParams

BLOCKS, SIZE, PROMPT = 21, 4, 40


class Drawn:
    def __init__(self, count: int) -> None:
        self._count = count

    def done(self) -> bool:
        return True

    def result(self) -> npt.NDArray[np.int32]:
        return np.full(self._count, 7, np.int32)


class Passes:
    """Every draft is token 7; the passes are counted in tokens."""

    def __init__(self, lag: int, places: bool) -> None:
        self.lag, self.places, self.times = lag, places, None
        self.computed: list[int] = []
        self.fails = False

    def known(self, step: HeadPass, timed: bool) -> list[Drawn]:
        self.computed.append(step.plan.num_tokens)
        return [Drawn(1)] * (1 + timed)

    first = known

    def renew(self) -> None:
        self.fails = False

    def following(self, step: HeadPass, depth: int) -> Drawn:
        if self.fails:
            raise PlatformError("a kernel failed")
        return Drawn(step.plan.num_seqs)


def drafter(passes: Any, sharing: bool) -> HeadDrafter:
    return HeadDrafter("draft", "d", passes, BLOCKS, SIZE, 64, 80, 100, False, sharing=sharing)


def draft(model: HeadDrafter, name: str, placed: bool = False, count: int = 3) -> list[int]:
    known = len(model._sequences[name].tokens)
    table = np.arange(-(-known // SIZE), dtype=np.int32)
    model.place(DraftRow(name, 8, known + 1, 0, table, 0 if placed else None))
    return model.draft([(name, count)]).tokens[0]


def begun(model: HeadDrafter, name: str, first: int = 0) -> None:
    model.begin(Request(name, tuple(first + at for at in range(PROMPT)), SamplingParams(temperature=0.0)))
    model.extend(name, [1])


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize(("lag", "keep", "missing"), [(0, True, 2), (0, False, 10), (1, True, PROMPT + 9)])
def test_its_blocks_are_given_back_and_taken_anew(lag: int, keep: bool, missing: int, placed: bool) -> None:
    """Those of a head hold what depends on more than the tokens: they are not found again. Of a model's, those of the
    prompt were known to be right before."""
    passes = Passes(lag, placed)
    model = drafter(passes, sharing=not lag)
    begun(model, "a")
    assert len(draft(model, "a", placed)) == 3
    model.extend("a", range(20, 28))
    assert len(draft(model, "a", placed)) == 3
    assert model.free_blocks < BLOCKS - 1
    model.pause("a", keep)
    assert model.free_blocks == BLOCKS - 1
    assert model.behind("a") == PROMPT + 9 - lag
    passes.computed.clear()
    model.extend("a", [2])
    assert model.behind("a") == missing
    assert len(draft(model, "a", placed)) == 3
    assert sum(passes.computed) == missing
    assert model.behind("a") == 0
    model.end("a", True)
    assert model.free_blocks == BLOCKS - 1


def test_others_take_what_it_has_given_back() -> None:
    model = drafter(Passes(0, False), sharing=True)
    for name, first in (("a", 0), ("b", 50)):
        begun(model, name, first)
    assert draft(model, "a")
    assert not draft(model, "b"), "there are not enough blocks for both"
    model.pause("a", True)
    assert draft(model, "b")
    assert not model.room("a") or not draft(model, "a")
    model.end("b", True)
    model.extend("a", [2])
    assert draft(model, "a")


def test_behind_a_round_that_failed_nothing_is_found_again() -> None:
    passes = Passes(0, False)
    model = drafter(passes, sharing=True)
    begun(model, "a")
    passes.fails = True
    assert not draft(model, "a")
    model.pause("a", True)
    model.renew()
    model.extend("a", [2])
    assert model.behind("a") == PROMPT + 2
    assert draft(model, "a")
    model.end("a", True)
    assert model.free_blocks == BLOCKS - 1
