"""Keeps a stream's connection alive while nothing comes: proxies and browsers close one that is silent for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["COMMENT", "Heartbeat"]

COMMENT = b": nothing yet\n\n"
"""A line that readers of server-sent events skip (HTML standard, 9.2.6)."""
_INTERVAL = 5.0
"""Seconds between two looks at a stream."""
_IDLE_CHECKS = 2
"""Looks without a piece after which a comment is written: 10 to 15 seconds of silence."""


class Heartbeat:
    """One stream's. It costs a streamed piece nothing but setting `sent`. Thread: the event loop's."""

    def __init__(self, write: Callable[[], Awaitable[None]]) -> None:
        """`write` sends a comment."""
        self._write = write
        self.sent = False
        self._idle_checks = 0
        self._task: asyncio.Task[None] | None = None
        self._arm()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._check)

    def _check(self) -> None:
        self._idle_checks = 0 if self.sent else self._idle_checks + 1
        self.sent = False
        if self._idle_checks >= _IDLE_CHECKS:
            self._idle_checks = 0
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
