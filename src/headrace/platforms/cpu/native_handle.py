"""Owns a native team and ends it before the memory of its jobs is freed."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from typing import Any

__all__ = ["TeamHandle"]


class TeamHandle:
    """Owns the native team and the objects that its jobs use, `kept`.

    The team finishes its jobs and ends at `close`, when the last reference to it is dropped, or when the interpreter
    exits: whichever comes first, and before the memory that its jobs read and write is freed. The handle stays valid
    after `close`, so another thread may still wait for a ticket.
    """

    def __init__(self, functions: ctypes.CDLL, value: int) -> None:
        self.value = value
        self.kept: deque[tuple[int, Any]] = deque()
        self._functions = functions
        self._end = weakref.finalize(self, functions.hr_team_close, value)
        self.closed = False

    def close(self) -> None:
        """Finish all submitted jobs and end the threads. Calling it twice is harmless. It does nothing in a forked
        process."""
        self.closed = True
        self._end()
        self.kept.clear()

    def __del__(self) -> None:
        self._end()
        self._functions.hr_team_free(self.value)
