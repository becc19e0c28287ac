"""Limits the time that a connection waits for a request that its client has started to send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["BODY", "HEAD", "ReceiveTimeout"]

HEAD_TIME = 30.0
"""Seconds for a request line and headers, from the connection's start or the first byte after an earlier request."""
BODY_PAUSE = 30.0
"""Seconds between two pieces of a body, at most."""
BODY_TIME = 600.0
"""Seconds for a complete body."""

HEAD, BODY = "head", "body"


class ReceiveTimeout:
    """Timeout of one connection. A request that comes in one piece starts no timer. Thread: the event loop's."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, busy: Callable[[str], bool], expire: Callable[[str], None]
    ) -> None:
        """`busy(awaited)` reports whether the server itself delays the client. `expire(awaited)` is called when the
        time is over."""
        self._loop, self._busy, self._expire = loop, busy, expire
        self._awaited: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._started_at = self._last = 0.0

    def wait_for(self, awaited: str | None) -> None:
        """Set what must follow, HEAD or BODY; None if nothing is due. To be called whenever data has come."""
        if awaited is None and self._awaited is None:
            return
        self._last = self._loop.time()
        if awaited == self._awaited:
            return
        self.stop()
        if awaited is not None:
            self._awaited, self._started_at = awaited, self._last
            self._timer = self._loop.call_later(HEAD_TIME if awaited == HEAD else BODY_PAUSE, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._awaited = None

    def _look(self) -> None:
        """Check the time when the timer fires. It is set once per request, not per piece, and set again here for the
        time that is left."""
        awaited, now = self._awaited, self._loop.time()
        assert awaited is not None
        if self._busy(awaited):
            self._started_at = self._last = now
        left = self._started_at + HEAD_TIME - now
        if awaited == BODY:
            left = min(self._last + BODY_PAUSE, self._started_at + BODY_TIME) - now
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
            return
        self.stop()
        self._expire(awaited)
