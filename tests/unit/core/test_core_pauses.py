"""Sequences that are put back in the queue: who guesses their tokens is told, once each time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, naive, same
from test_core_drafts import requests
from test_core_placed import PlacedOracle, plain

from headrace.core.drafts import DraftRow, StepSize
from headrace.types import Request

TIGHT = replace(SMALL, num_blocks=14)


class Pausing(PlacedOracle):
    """Keeps what it is told. `paused`: sequences that wait to go on."""

    def __init__(self, share: float) -> None:
        super().__init__(TIGHT, 0.7, 0.5, seed=1, eos_every=0, share=share)
        self.paused = set[str]()
        self.told: list[tuple[str, bool]] = []

    def begin(self, request: Request) -> bool:
        return super().begin(request) and request.id != "r2"

    def pause(self, sequence: str, keep: bool) -> None:
        assert sequence not in self.paused
        self.paused.add(sequence)
        self.told.append((sequence, keep))

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int) -> None:
        self.paused.discard(sequence)
        super().extend(sequence, tokens, in_flight)

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> list[list[int]]:
        self.paused.difference_update(row.sequence for row in rows)
        return super().draft(step, size, rows)

    def drive(self, depth: int) -> Driver:
        driver = super().drive(depth)
        work = plain(requests(random.Random(8), 14))
        work = [replace(one, params=replace(one.params, max_tokens=30), predicted=(5, 6)) for one in work]
        driver.add(*work)
        return driver


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("depth", [1, 2])
def test_what_is_preempted_waits_without_drafts(depth: int, share: float) -> None:
    source = Pausing(share)
    driver = source.drive(depth)
    records = driver.run()
    for one in driver.requests.values():
        same(records[one.id], naive(one, TIGHT))
    names = [name for name, _ in source.told]
    assert driver.scheduler.stats().preemptions > len(names) > 5
    assert "r2" not in names, "it has no drafts"
    assert all(keep for _, keep in source.told)
    assert not source.paused, "each has gone on"


def test_nothing_is_kept_of_what_runs_behind_a_step_that_failed() -> None:
    source = Pausing(1.0)
    driver = source.drive(2)
    for _ in range(4):
        driver.step()
    running = {seq.id for seq in driver.scheduler._running.all()} - {"r2"}
    ended = {delta.request_id for delta in driver.fail("lost") if delta.finish_reason == "error"}
    assert ended
    assert source.told == [(name, False) for name in sorted(running - ended)]
    driver.run()
