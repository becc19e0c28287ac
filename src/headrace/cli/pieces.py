"""The type of a streamed answer, and the timing of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

__all__ = ["AnswerClock", "Pieces"]

Pieces = Generator[str, None, None]
"""Pieces of text, in order. Closing it early aborts the request."""


class AnswerClock:
    """Times one answer, from the question to its last piece."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._asked = now()
        self._first: float | None = None
        self._last = self._asked

    def piece(self) -> None:
        """Take note of a piece that has come."""
        self._last = self._now()
        if self._first is None:
            self._first = self._last

    def summary(self, tokens: int | None) -> str:
        """One line: tokens, tokens a second after the first one, and the time to the first; empty without an answer."""
        if self._first is None:
            return ""
        wait = f"first after {self._first - self._asked:.2f} s"
        if not tokens:
            return wait
        span = self._last - self._first
        speed = f"{(tokens - 1) / span:.1f} tokens/s, " if tokens > 1 and span > 0 else ""
        return f"{tokens} token{'s' if tokens > 1 else ''}, {speed}{wait}"
