"""The device's own times of launches, where a device may not know them."""

from __future__ import annotations

from headrace.engine.launch_times import LaunchTimes


class Timed:
    def mark(self) -> int:
        return 0

    def busy_until(self, mark: int) -> float | None:
        return 1.5 + mark


def test_a_device_that_tells_times() -> None:
    times = LaunchTimes(Timed())
    assert (times.known, times.mark(), times.busy_until(0)) == (True, 0, 1.5)
    assert times.busy_until(None) is None


def test_a_device_that_does_not() -> None:
    times = LaunchTimes(None)
    assert (times.known, times.mark(), times.busy_until(3)) == (False, None, None)
