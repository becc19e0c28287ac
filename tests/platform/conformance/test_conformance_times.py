"""Times of launches in the kit: skipped if a device has none, green if they are its working times, failed otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from broken_backends import Sound

from headrace.conformance.timing_tier import TimingTier
from headrace.conformance.tiny import TinyModel
from headrace.platforms.cpu import CpuPlatform
from headrace.platforms.interface import Device


class Times(Sound):
    """The time of all that was submitted."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = [0.0]

    def submit(self, work: Callable[[], Any], lasting: bool = False) -> Any:
        start = time.perf_counter()
        try:
            return super().submit(work, lasting)
        finally:
            self.ends.append(self.ends[-1] + time.perf_counter() - start)

    def busy_seconds(self) -> float:
        return self.ends[-1]

    def mark(self) -> int:
        return len(self.ends) - 1

    def busy_until(self, mark: int) -> float | None:
        return self.ends[mark]


class CountsIdleTime(Times):
    """Points are times of a clock."""

    def submit(self, work: Callable[[], Any], lasting: bool = False) -> Any:
        found = super().submit(work, lasting)
        self.ends[-1] = time.perf_counter()
        return found


class TakesTheLatest(Times):
    """Every point is the latest."""

    def busy_until(self, mark: int) -> float | None:
        return self.busy_seconds()


class NeverKnows(Times):
    def busy_until(self, mark: int) -> float | None:
        return None


class StandsStill(Times):
    def busy_until(self, mark: int) -> float | None:
        return 0.0


class GoesBack(Times):
    def busy_until(self, mark: int) -> float | None:
        return -self.ends[mark]


class LosesCount(Times):
    def mark(self) -> int:
        return -len(self.ends)


class CountsLess(Times):
    def busy_seconds(self) -> float:
        return 0.0


class HasNoCounter(Sound):
    def mark(self) -> int:
        return 0

    def busy_until(self, mark: int) -> float | None:
        return 0.0


def _check(device: Device) -> None:
    try:
        TimingTier().test_launches_have_the_times_in_which_the_device_worked(device, TinyModel(device))
    finally:
        device.close()


def test_undeclared_skips_with_a_reason() -> None:
    with pytest.raises(pytest.skip.Exception, match="times of launches are not declared"):
        _check(Sound())


def test_declared_is_tested() -> None:
    _check(Times())


def test_those_of_the_cpu_are_its_own() -> None:
    _check(CpuPlatform().open(0, {}))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (CountsIdleTime, r"the device worked .* s, but all steps were waited for in"),
        (TakesTheLatest, r"the end of a launch was .* s, and is .* s later"),
        (NeverKnows, "the end of a launch is not known"),
        (StandsStill, "steps take no time"),
        (GoesBack, "a launch has ended before the one before it"),
        (LosesCount, "a point is smaller than one before it"),
        (CountsLess, "the device has worked less in all"),
        (HasNoCounter, "a device that has TimesLaunches has BusySeconds"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_fault_is_found(fault: type[Sound], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        _check(fault())
