"""How long rank 0 waits for what another rank computes, before it takes that rank for one that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.types import StepPlan

__all__ = ["StepPatience", "rows_of", "wait_patiently"]

_FIRST = 600.0
"""Seconds for the first step: nothing has been measured yet, and it may compile."""
_LEAST = 60.0
"""Seconds for every other step, at least."""
_TIMES = 20.0
"""The same, compared with the longest wait so far."""
_ROWS = 2.0
"""The same, compared with the longest wait for one row times the step's rows."""
_ATTENDED = 1024
"""To attend to so many tokens takes no longer than a row's products."""
_SLICE = 1.0
"""Seconds of one wait."""


def rows_of(plan: StepPlan) -> int:
    """The work of a step in rows behind short texts: its tokens, and more for those behind long ones. A long text may
    come out of a cache, so that no shorter step was measured before."""
    return len(plan.token_ids) + int(plan.positions.sum(dtype=int)) // _ATTENDED


class StepPatience:
    """The limit, from the waits so far. A step of one row reads all weights, so its time is more than what a row of a
    long step takes: rows, as `rows_of` counts them, times that time bounds any step. Thread: the engine's."""

    def __init__(self) -> None:
        self._longest: float | None = None
        self._row = 0.0
        """The longest wait for one row."""

    def limit(self, rows: int) -> float:
        """Seconds for a step of so many rows."""
        if self._longest is None:
            return _FIRST
        return max(_LEAST, _TIMES * self._longest, _ROWS * self._row * rows)

    def waited(self, seconds: float, rows: int) -> None:
        """A step has come after a wait of so many seconds."""
        self._longest = max(seconds, self._longest or 0.0)
        self._row = max(self._row, seconds / max(1, rows))

    @property
    def longest(self) -> float:
        return self._longest or 0.0


def wait_patiently(
    changed: threading.Condition,
    happened: Callable[[], bool],
    limit: float,
    clock: Callable[[], float] = time.monotonic,
) -> float | None:
    """Wait on a condition that is held. Returns the seconds waited; None if it has not happened within the limit.

    Time in which this process stood still does not count: those that it waits for may have stood still with it.
    """
    waited = 0.0
    while not happened():
        if waited >= limit:
            return None
        before = clock()
        changed.wait_for(happened, min(_SLICE, limit))
        waited += min(clock() - before, 2 * _SLICE)
    return waited
