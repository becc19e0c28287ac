"""The three wastes: how well memory, slots and device are used, over a sliding window of seconds and in sums since the start."""

from __future__ import annotations

import contextlib
import sys
from collections import deque

from headrace.engine.stats import EngineTotals

__all__ = ["Figures", "peak_memory"]

_LOOK = 0.05
"""Seconds between two looks at the memory, which cost time."""


class Figures:
    """Records steps; answers for the window that ends now. Times are monotonic seconds."""

    def __init__(self, slots: int, started: float, window: float = 5.0) -> None:
        self._slots = slots
        self._started = started
        self._window = window
        self._steps: deque[tuple[float, float, int]] = deque()
        self._busy = 0.0
        self._running = 0
        self._used: deque[tuple[float, float]] = deque()
        self.steps = 0
        self._all_busy = self._all_slots = self._all_used = 0.0
        self._looks = 0

    def record(self, now: float, busy: float, running: int) -> None:
        """One step ended: the device worked `busy` seconds on it, for `running` sequences."""
        self._steps.append((now, busy, running))
        self._busy += busy
        self._running += running
        self.steps += 1
        self._all_busy += busy
        self._all_slots += running / self._slots
        self._forget(now)

    def wants_memory(self, now: float) -> bool:
        """True where the last look at the memory is old."""
        return not self._used or now - self._used[-1][0] >= _LOOK

    def record_memory(self, now: float, used: float) -> None:
        """Tokens stored over token places held."""
        self._used.append((now, used))
        self._all_used += used
        self._looks += 1

    def totals(self, host_seconds: float) -> EngineTotals:
        """What was recorded since the start, with the host's processor time and memory beside it."""
        return EngineTotals(self._all_busy, self._all_slots, self._all_used, self._looks, host_seconds, peak_memory())

    def kv_utilization(self, now: float) -> float:
        """Mean of what was recorded."""
        self._forget(now)
        return sum(used for _, used in self._used) / len(self._used) if self._used else 0.0

    def device_busy(self, now: float) -> float:
        """Share of the window's wall time in which the device had work."""
        self._forget(now)
        span = min(self._window, now - self._started)
        return min(1.0, max(0.0, self._busy / span)) if self._steps and span > 0 else 0.0

    def slot_occupancy(self, now: float) -> float:
        """Running sequences over slots, mean over the window's steps."""
        self._forget(now)
        return self._running / (self._slots * len(self._steps)) if self._steps else 0.0

    def _forget(self, now: float) -> None:
        while self._steps and self._steps[0][0] <= now - self._window:
            _, busy, running = self._steps.popleft()
            self._busy -= busy
            self._running -= running
        while self._used and self._used[0][0] <= now - self._window:
            self._used.popleft()


def peak_memory() -> int:
    """Bytes: the most that this process has held since its start; 0 where the system does not tell."""
    with contextlib.suppress(ImportError):  # Windows has no such module.
        import resource

        # Kilobytes, but on macOS.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 0
