"""The device's own times of what was launched, for those who may have a device that does not know them."""

from __future__ import annotations

from headrace.platforms.interface import TimesLaunches

__all__ = ["LaunchTimes"]


class LaunchTimes:
    """The points of a device that tells its times. Every point of another is None, and nothing is known of it."""

    def __init__(self, device: TimesLaunches | None) -> None:
        self._device = device
        self.known = device is not None
        """The device tells times."""

    def mark(self) -> int | None:
        """The point behind all that has been launched."""
        return None if self._device is None else self._device.mark()

    def busy_until(self, mark: int | None) -> float | None:
        """As of the device; None also for a point that is None."""
        return None if self._device is None or mark is None else self._device.busy_until(mark)
