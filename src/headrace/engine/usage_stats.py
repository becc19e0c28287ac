"""Measures the use of memory, slots and device, over a sliding window of seconds and in total since the start."""

from __future__ import annotations

import contextlib
import sys
from collections import deque

from headrace.engine.stats import EngineTotals

__all__ = ["UsageStats", "peak_memory"]

_SAMPLE_INTERVAL = 0.05
"""Seconds between two samples of the memory, which cost time."""


class UsageStats:
    """Records steps and reports the means of the last window. Times are monotonic seconds."""

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
        self._samples = 0

    def record(self, now: float, busy: float, running: int) -> None:
        """Record a step that has ended: the device worked `busy` seconds on it, for `running` sequences."""
        self._steps.append((now, busy, running))
        self._busy += busy
        self._running += running
        self.steps += 1
        self._all_busy += busy
        self._all_slots += running / self._slots
        self._drop_old(now)

    def memory_sample_due(self, now: float) -> bool:
        """True if the last sample of the memory is old."""
        return not self._used or now - self._used[-1][0] >= _SAMPLE_INTERVAL

    def record_memory(self, now: float, used: float) -> None:
        """Record a sample: stored tokens over the capacity of held blocks."""
        self._used.append((now, used))
        self._all_used += used
        self._samples += 1

    def totals(self, host_seconds: float) -> EngineTotals:
        """The totals since the start, with the host's processor time and memory."""
        return EngineTotals(self._all_busy, self._all_slots, self._all_used, self._samples, host_seconds, peak_memory())

    def kv_utilization(self, now: float) -> float:
        """Mean of the samples in the window."""
        self._drop_old(now)
        return sum(used for _, used in self._used) / len(self._used) if self._used else 0.0

    def device_busy(self, now: float) -> float:
        """Share of the window's wall time in which the device had work."""
        self._drop_old(now)
        span = min(self._window, now - self._started)
        return min(1.0, max(0.0, self._busy / span)) if self._steps and span > 0 else 0.0

    def slot_occupancy(self, now: float) -> float:
        """Running sequences over slots, mean over the window's steps."""
        self._drop_old(now)
        return self._running / (self._slots * len(self._steps)) if self._steps else 0.0

    def _drop_old(self, now: float) -> None:
        while self._steps and self._steps[0][0] <= now - self._window:
            _, busy, running = self._steps.popleft()
            self._busy -= busy
            self._running -= running
        while self._used and self._used[0][0] <= now - self._window:
            self._used.popleft()


def peak_memory() -> int:
    """Peak memory of this process in bytes; 0 if the system does not report it."""
    with contextlib.suppress(ImportError):  # Windows has no such module.
        import resource

        # Kilobytes, except on macOS.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 0
