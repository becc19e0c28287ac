"""Cancels a request's work early: when its client disconnects, or when the server must stop."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType

from starlette.types import Receive

__all__ = ["CancelScope", "ClientDisconnected"]


class ClientDisconnected(Exception):
    """The client closed the connection before the answer was complete."""


class CancelScope:
    """Used as `async with` around a request's work, after its body has been read. Cancels the task that entered it.

    Code that catches the CancelledError calls `reason`, which returns the reason and undoes the cancellation. None
    means that the cancellation came from elsewhere.
    """

    def __init__(self, active: set[CancelScope], receive: Receive) -> None:
        self._active = active
        self._receive = receive
        self._why: Exception | None = None

    async def __aenter__(self) -> CancelScope:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watch = asyncio.create_task(self._watch_client())
        self._active.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Cancel nothing from now on. A second call has no effect."""
        self._active.discard(self)
        self._watch.cancel()

    def stop(self, why: Exception) -> None:
        """Cancel the work; its reason is `why`. Only the first call has an effect, and none after `release`."""
        if self._why is None and self in self._active:
            self._why = why
            self._task.cancel()

    def reason(self) -> Exception | None:
        if self._why is not None and sys.version_info >= (3, 11):
            self._task.uncancel()
        return self._why

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.stop(ClientDisconnected())
