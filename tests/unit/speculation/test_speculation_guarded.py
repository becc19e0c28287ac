"""A fault of a drafter ends its drafts, and no request."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from headrace.speculation.drafter import NO_GUESS, Guess
from headrace.speculation.guarded import GuardedDrafter


class Faulty:
    name = "faulty"

    def __init__(self, where: str) -> None:
        self.where = where

    def begin(
        self, sequence: str, namespace: tuple[str, str], prompt: Sequence[int], predicted: Sequence[int] = ()
    ) -> None:
        self._at("begin")

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        self._at("extend")

    def guess(self, sequence: str, most: int) -> Guess:
        self._at("guess")
        return Guess([1] * 9, [0.5] * 9) if self.where == "too many" else Guess([1], [0.5])

    def end(self, sequence: str, keep: bool) -> None:
        self._at("end")

    def _at(self, where: str) -> None:
        if where == self.where:
            raise KeyError("no such sequence")


@pytest.mark.parametrize("where", ["begin", "extend", "guess", "end", "too many"])
def test_it_guesses_nothing_after_its_first_fault(where: str, caplog: pytest.LogCaptureFixture) -> None:
    drafter = GuardedDrafter(Faulty(where))
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            drafter.begin("a", ("", ""), [1, 2])
            drafter.extend("a", [3])
            drafter.guess("a", 4)
            drafter.end("a", True)
    assert drafter.guess("a", 4) == NO_GUESS
    assert caplog.text.count("the drafter faulty failed: nothing is speculated from now on") == 1


def test_without_a_fault_it_passes_everything_on() -> None:
    drafter = GuardedDrafter(Faulty("nowhere"))
    drafter.begin("a", ("", ""), [1, 2])
    assert drafter.guess("a", 4) == Guess([1], [0.5])
