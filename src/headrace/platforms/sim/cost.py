"""Estimates the time of work: a roofline of memory traffic and arithmetic, on a real or virtual clock."""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["SimClock", "SimMachine"]


@dataclass(frozen=True, slots=True)
class SimMachine:
    """The simulated device."""

    bandwidth: float = 2.0e12
    """Bytes per second."""
    flops: float = 4.0e14
    """Operations per second; a multiply-add counts as two."""
    launch_seconds: float = 2.0e-6
    """Added for each operator."""
    step_seconds: float = 5.0e-5
    """Added for each step."""
    memory_bytes: int = 80 << 30

    def seconds(self, traffic: float, operations: float) -> float:
        """Seconds of one operator: the longer of memory traffic and arithmetic, plus the launch."""
        return max(traffic / self.bandwidth, operations / self.flops) + self.launch_seconds


class SimClock:
    """Records when the launched work ends, in seconds since the device was opened.

    Virtual: only work makes time pass. Real: work starts when it is launched or when earlier work ends, whichever is
    later.
    """

    def __init__(self, realtime: bool) -> None:
        self._origin = time.monotonic() if realtime else None
        self.free_at = 0.0
        self.busy = 0.0
        """Total seconds of work."""
        self.steps = 0

    def spend(self, seconds: float) -> float:
        """Launch work of this length. Returns the time at which it ends."""
        start = self.free_at if self._origin is None else max(self.free_at, time.monotonic() - self._origin)
        self.free_at = start + seconds
        self.busy += seconds
        return self.free_at

    def passed(self, moment: float) -> bool:
        """True if a moment has passed; always on a virtual clock."""
        return self._origin is None or time.monotonic() - self._origin >= moment

    def wait(self, moment: float) -> None:
        """Sleep until a moment; returns at once on a virtual clock."""
        if self._origin is not None:
            time.sleep(max(0.0, moment - (time.monotonic() - self._origin)))
