"""The working time of an accelerator, from an event before and one behind each launch on the compute stream.

An event holds the time at which the device passed it. Nothing waits: a later call reads the pairs that have been passed
meanwhile, and their events serve again, so that there are never more of them than launches in flight.

Each launch is measured from an event of its own, and not from one that is the zero of a clock, for two reasons.
Runtimes give milliseconds between two events as float32: from 8.192 s on its last bit is 1 µs, twice what an event
resolves, so the zero would have to be made again every few seconds. And the time between two launches, in which the
device may have nothing to do, must not count.

The events stand outside of captured graphs, around a replay: one that is recorded in a capture is a node of the graph,
and asking for its time is an error. Nor is any event asked for during a capture, which that would break.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.platforms.accelerator.torch_runtime import TorchRuntime

__all__ = ["EventTiming"]

T = TypeVar("T")
_KEPT = 1024
"""Launches whose ends are known; one of more launches ago is forgotten."""


class EventTiming:
    """`interface.BusySeconds` and `interface.TimesLaunches` of one device: the sum of its launches' times.

    A launch that is a graph takes the time of the graph. One that is launched operator by operator takes the time from
    its first operator to its last, in which the device may have waited for the host. Copies of inputs to the device are
    not counted: they take microseconds.
    """

    def __init__(self, runtime: TorchRuntime, compute: Any) -> None:
        """`compute`: the stream of all launches. Waits until it is done. Raises RuntimeError if this device or this
        build of torch does not time its events."""
        self._runtime, self._compute = runtime, compute
        self._free: list[Any] = []
        self._in_flight = deque[tuple[Any, Any]]()
        """The pairs of the latest launches, oldest first."""
        self._launched = 0
        self._worked = 0.0
        """Seconds of all launches that are done."""
        self._ends = deque[float](maxlen=_KEPT)
        """What that was at the end of the latest launches that are done."""
        begin, end = self._event(), self._event()
        begin.record(compute)
        end.record(compute)
        end.synchronize()
        begin.elapsed_time(end)
        self._free += begin, end

    def timed(self, launch: Callable[[], T]) -> T:
        """What `launch` gives, which is timed unless it raises. It puts work on the compute stream and captures
        nothing."""
        self._read()
        begin, end = self._event(), self._event()
        begin.record(self._compute)
        try:
            found = launch()
        except BaseException:
            self._free += begin, end
            raise
        end.record(self._compute)
        self._launched += 1
        self._in_flight.append((begin, end))
        return found

    def busy_seconds(self) -> float:
        """Seconds of all launches that are done."""
        self._read()
        return self._worked

    def mark(self) -> int:
        """The number of launches so far."""
        return self._launched

    def busy_until(self, mark: int) -> float | None:
        """See `interface.TimesLaunches`."""
        self._read()
        if mark == 0:
            return 0.0
        behind = self._launched - len(self._in_flight) - mark
        """The launches after the mark that are done; less than 0 if its own is not."""
        return self._ends[-1 - behind] if 0 <= behind < len(self._ends) else None

    def _event(self) -> Any:
        return self._free.pop() if self._free else self._runtime.module.Event(enable_timing=True)

    def _read(self) -> None:
        """Add up the launches that are done. A lost device has done none: the next launch or result raises that."""
        try:
            while self._in_flight and self._in_flight[0][1].query():
                begin, end = self._in_flight[0]
                self._worked += max(0.0, begin.elapsed_time(end)) / 1e3
                self._ends.append(self._worked)
                self._free += self._in_flight.popleft()
        except RuntimeError:
            return
