"""The device's share of time, which the device reports if it can."""

from __future__ import annotations

from typing import Any

import pytest
from engine_fakes import FakeRunner
from test_engine_core import request

from headrace.core import CoreConfig, Scheduler
from headrace.engine.core_loop import EngineCore
from headrace.engine.startup import busy_seconds
from headrace.engine.stats import SpeculationTotals
from headrace.platforms.interface import own_extension
from headrace.types import StepPlan, StepResult


def test_it_is_what_the_device_reports() -> None:
    """Every step takes 40 ms, of which the device works 30."""
    now, worked = 100.0, 7.0

    class Runner(FakeRunner):
        def run(self, plan: StepPlan) -> StepResult:
            nonlocal now, worked
            now += 0.04
            worked += 0.03
            return super().run(plan)

    config = CoreConfig(
        num_blocks=64, block_size=4, max_num_seqs=8, max_num_batched_tokens=16, max_model_len=128, vocab_size=256
    )
    told = EngineCore(Scheduler(config), Runner(), 8, 4, lambda: now, lambda: worked)
    told.add([request("r", max_tokens=20)])
    while told.has_work():
        told.step()
    assert told.stats().steps == 20
    assert told.stats().device_busy == pytest.approx(0.75)
    totals = told.stats().totals
    assert totals.busy_seconds == pytest.approx(20 * 0.03)
    assert totals.slot_shares == pytest.approx(20 / 8)
    assert 0 < totals.kv_shares <= totals.kv_samples
    assert totals.host_seconds > 0


@pytest.mark.parametrize("knows", [False, True])
def test_devices_that_measure_it_and_those_that_do_not(knows: bool) -> None:
    class Device:
        def extension(self, kind: Any) -> Any:
            return own_extension(self, kind)

    class Counting(Device):
        def busy_seconds(self) -> float:
            return 2.5

    found = busy_seconds(Counting() if knows else Device())  # type: ignore[arg-type]
    assert (found() if found is not None else None) == (2.5 if knows else None)


def test_a_device_that_knows_the_time_of_each_launch_gives_each_step_its_own() -> None:
    """Its counter is read late: it has worked on what comes next by then."""
    seen: list[float] = []

    class Times:
        marks = 0

        def mark(self) -> int:
            self.marks += 1
            return self.marks

        def busy_until(self, mark: int) -> float | None:
            return 0.5 * mark if mark != 4 else None

    class Learner:
        def settle(self, plan: StepPlan, emitted: int, seconds: float) -> None:
            seen.append(seconds)

        def waited(self, seconds: float) -> None:
            pass

        def totals(self) -> SpeculationTotals:
            return SpeculationTotals()

    config = CoreConfig(
        num_blocks=64, block_size=4, max_num_seqs=8, max_num_batched_tokens=16, max_model_len=128, vocab_size=256
    )
    counter = iter([0.0, 2.25])
    core = EngineCore(
        Scheduler(config), FakeRunner(), 8, 4, busy_seconds=lambda: next(counter), drafting=Learner(), times=Times()
    )
    core.add([request("r", max_tokens=6)])
    while core.has_work():
        core.step()
    assert seen == [0.5, 0.5, 0.5, 0.75, 0.25, 0.5], "the fourth is not known, and its counter was read"
