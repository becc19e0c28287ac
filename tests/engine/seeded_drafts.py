"""Lets engines draft from known answers instead of by a method."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from headrace.conformance.seeded_drafts import PlacedDrafts, SeededDrafts
from headrace.engine import startup
from headrace.engine.stats import SpeculationTotals
from headrace.types import StepPlan

Source = TypeVar("Source")


class ByRequest(dict[str, list[int]]):
    """Answers by the client's ids of requests; the engine's ids have numbers behind them."""

    def __missing__(self, key: str) -> list[int]:
        return self[key.partition("#")[0]]


class _Unlearnt:
    """The members that the engine's loop uses."""

    def settle(self, plan: StepPlan, emitted: int, seconds: float) -> None:
        pass

    def waited(self, seconds: float) -> None:
        pass

    def totals(self) -> SpeculationTotals:
        return SpeculationTotals()


class EngineDrafts(_Unlearnt, SeededDrafts):
    pass


class EnginePlaced(_Unlearnt, PlacedDrafts):
    pass


def use(patch: pytest.MonkeyPatch, make: Callable[[], Source]) -> list[Source]:
    """Let engines that are built from now on use such drafts; returns the list that gets each engine's."""
    made: list[Source] = []

    def drafting(*_: object, **__: object) -> Source:
        made.append(make())
        return made[-1]

    patch.setattr(startup, "Drafting", drafting)
    return made
