"""A question to the engine that several callers ask: one is open at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

from headrace.engine.wire import Command

__all__ = ["Inquiry"]

T = TypeVar("T")


class Inquiry(Generic[T]):
    """Thread: the event loop of the client."""

    def __init__(self, message: Callable[[int], Command]) -> None:
        """`message` makes the command of a number."""
        self._message = message
        self._numbers = count()
        self._open: asyncio.Future[T] | None = None
        """Not answered yet. There is at most one, independently of the number of callers."""
        self.last: T | None = None
        """The last answer of this engine."""

    def ask(self, send: Callable[[Command], None]) -> asyncio.Future[T]:
        """Ask, unless the question is open already."""
        if self._open is None:
            self._open = asyncio.get_running_loop().create_future()
            send(self._message(next(self._numbers)))
        return self._open

    def answer(self, value: T) -> None:
        self.last = value
        asked, self._open = self._open, None
        if asked is not None:
            asked.set_result(value)

    def fail(self, error: Exception) -> None:
        """The engine was lost."""
        asked, self._open, self.last = self._open, None, None
        if asked is not None:
            asked.set_exception(error)
            asked.exception()  # Mark it as retrieved: maybe no caller waits any more.
