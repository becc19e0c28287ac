"""Threads for work that would block the event loop: chat templates and tokenising."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace.errors import Overloaded

__all__ = ["LONG", "TextWorkers"]

LONG = 256 * 2**10
"""Bytes from which a request counts as long: it takes about a second."""
_MOST_WAITING = 128 * 2**20
"""Bytes of long requests that may wait."""

T = TypeVar("T")


class TextWorkers:
    """Two thread pools, so that long requests don't delay short ones. Thread: the event loop's."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(4, "text")
        self._long = ThreadPoolExecutor(1, "long-text")
        self._waiting = 0

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Call `work` in a thread. `size`: the request's bytes. Raises what `work` raises, and Overloaded if too many
        bytes of long requests wait."""
        loop = asyncio.get_running_loop()
        if size < LONG:
            return await loop.run_in_executor(self._short, work)
        if self._waiting and self._waiting + size > _MOST_WAITING:
            raise Overloaded(f"{self._waiting} bytes of long requests wait to be tokenised", retry_after=1.0)
        self._waiting += size
        try:
            return await loop.run_in_executor(self._long, work)
        finally:
            self._waiting -= size

    def close(self) -> None:
        """Drop the work that waits; don't wait for work that runs."""
        for pool in (self._short, self._long):
            pool.shutdown(wait=False, cancel_futures=True)
