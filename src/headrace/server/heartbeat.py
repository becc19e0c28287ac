"""Sends comments on a stream that is idle: proxies and browsers close a connection that is idle for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["COMMENT", "Heartbeat"]

COMMENT = b": nothing yet\n\n"
"""A line that readers of server-sent events skip (HTML standard, 9.2.6)."""
_INTERVAL = 5.0
"""Seconds between two checks of a stream."""
_IDLE_CHECKS = 2
"""Checks without a piece after which a comment is sent: 10 to 15 idle seconds."""


class Heartbeat:
    """Heartbeat of one stream. Its only cost per streamed piece is setting `sent`. Thread: the event loop's."""

    def __init__(self, write: Callable[[], Awaitable[None]]) -> None:
        """`write` sends one comment."""
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
        """Stop; no comment is sent after this returns."""
        if self._task is not None:
            # Not cancelled: it may be sending the head of the answer.
            await asyncio.wait({self._task})
        self._timer.cancel()
