"""Tier 5: what a device says of the times of its launches (`TimesLaunches`) are its working times."""

from __future__ import annotations

import time
from typing import cast

import pytest

from headrace.conformance.tiers import tier
from headrace.conformance.tiny import Serving, TinyModel, requests
from headrace.engine.core_loop import PendingStep, StepRunner
from headrace.engine.runner import Runner
from headrace.platforms.interface import BusySeconds, Device, TimesLaunches
from headrace.types import StepPlan

__all__ = ["TimingTier"]

_IDLE = 0.05
"""Seconds for which the device has nothing to do."""
_CLOCKS = 1.01
"""The device's clock and the host's may be so far apart."""


@tier("model")
class TimingTier:
    def test_launches_have_the_times_in_which_the_device_worked(self, device: Device, model: TinyModel) -> None:
        """The times of steps, by points behind each: they never fall, they never change once they are known, all are
        known when the results are, and together they are no longer than the host has waited."""
        times, counter = device.extension(TimesLaunches), device.extension(BusySeconds)
        if times is None:
            pytest.skip("times of launches are not declared")
        assert counter is not None, "a device that has TimesLaunches has BusySeconds"
        serving = _MarkedServing(device, model, times)
        serving.run(requests(3))  # what is made on first use
        begin, waited = times.mark(), 0.0
        serving.marks.clear()
        for _ in range(3):
            start = time.perf_counter()
            serving.run(requests(3))
            waited += time.perf_counter() - start
            time.sleep(_IDLE)
        marks = [begin, *(mark for mark, _ in serving.marks)]
        assert marks == sorted(marks), "a point is smaller than one before it"
        ends = [times.busy_until(mark) for mark in marks]
        assert None not in ends, "all that was launched is done, but the end of a launch is not known"
        for (_, early), late in zip(serving.marks, ends[1:], strict=True):
            assert early is None or early == late, f"the end of a launch was {early} s, and is {late} s later"
        known = cast(list[float], ends)
        assert known == sorted(known), "a launch has ended before the one before it"
        worked = known[-1] - known[0]
        assert worked > 0, "steps take no time"
        assert worked <= waited * _CLOCKS, f"the device worked {worked} s, but all steps were waited for in {waited} s"
        assert counter.busy_seconds() >= known[-1], "the device has worked less in all than up to a point"


class _MarkedServing(Serving):
    """Serving with a point behind each launch, and what is known of it then."""

    def __init__(self, device: Device, model: TinyModel, times: TimesLaunches) -> None:
        self.marks: list[tuple[int, float | None]] = []
        self._times = times
        super().__init__(device, model)

    def watch(self, runner: Runner) -> StepRunner:
        return _Marking(runner, self)

    def add_mark(self) -> None:
        mark = self._times.mark()
        self.marks.append((mark, self._times.busy_until(mark)))


class _Marking:
    """A runner that puts a point behind each launch."""

    def __init__(self, runner: Runner, serving: _MarkedServing) -> None:
        self._runner, self._serving = runner, serving
        self.recover, self.where_not_finite = runner.recover, runner.where_not_finite

    def launch(self, plan: StepPlan) -> PendingStep:
        launched = self._runner.launch(plan)
        self._serving.add_mark()
        return launched
