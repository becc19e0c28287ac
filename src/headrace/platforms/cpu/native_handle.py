"""A native team that never outlives what its jobs point to."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from typing import Any

__all__ = ["TeamHandle"]


class TeamHandle:
    """Owns the native team and what its jobs need, `kept`.

    The team finishes and ends at `close`, when nobody refers to it any more, or when the interpreter exits: whichever comes
    first, and before the memory that its jobs read and write is given back. The number stays good after `close`, so a thread that
    is just waiting for a ticket comes to no harm.
    """

    def __init__(self, functions: ctypes.CDLL, value: int) -> None:
        self.value = value
        self.kept: deque[tuple[int, Any]] = deque()
        self._functions = functions
        self._end = weakref.finalize(self, functions.hr_team_close, value)
        self.closed = False

    def close(self) -> None:
        """Finish what was submitted and end the threads. Twice is harmless; in a forked process it ends nothing."""
        self.closed = True
        self._end()
        self.kept.clear()

    def __del__(self) -> None:
        self._end()
        self._functions.hr_team_free(self.value)
