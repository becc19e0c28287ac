"""Keeps a stream's connection alive while nothing comes: proxies and browsers close one that is silent for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["COMMENT", "Silence"]

COMMENT = b": nothing yet\n\n"
"""A line that readers of server-sent events skip (HTML standard, 9.2.6)."""
_LOOK = 5.0
"""Seconds between two looks at a stream."""
_LOOKS = 2
"""Looks without a piece after which a comment is written: 10 to 15 seconds of silence."""


class Silence:
    """One stream's. It costs a streamed piece nothing but setting `heard`. Thread: the event loop's."""

    def __init__(self, write: Callable[[], Awaitable[None]]) -> None:
        """`write` sends a comment."""
        self._write = write
        self.heard = False
        self._looks = 0
        self._task: asyncio.Task[None] | None = None
        self._arm()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def _look(self) -> None:
        self._looks = 0 if self.heard else self._looks + 1
        self.heard = False
        if self._looks >= _LOOKS:
            self._looks = 0
            self._task = asyncio.ensure_future(self._comment())
        else:
            self._arm()

    async def _comment(self) -> None:
        await self._write()
        self._arm()

    async def stop(self) -> None:
        """Nothing is written once this returns."""
        if self._task is not None:
            # Not cancelled: it may be about to send the head of the answer.
            await asyncio.wait({self._task})
        self._timer.cancel()
