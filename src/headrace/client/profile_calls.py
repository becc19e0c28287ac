"""Calls that begin and end a profile of the engine's steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from headrace.engine.profiling import ProfileReport
from headrace.engine.wire import Command, Profiled, StartProfile, StopProfile, from_wire
from headrace.errors import EngineDead

__all__ = ["ProfileCalls"]

_TIMEOUT = 120.0
"""Seconds for a trace to be written."""


class ProfileCalls:
    """Thread: the event loop of the client."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self._numbers = count()
        self._open: dict[int, asyncio.Future[Profiled]] = {}

    async def start(self, folder: str, steps: int) -> None:
        """Raises InvalidRequest and ConfigError, as `StepProfiler.start`."""
        number = next(self._numbers)
        await self._answer(number, StartProfile(number, folder, steps))

    async def stop(self) -> ProfileReport:
        number = next(self._numbers)
        reply = await self._answer(number, StopProfile(number))
        return ProfileReport(reply.file, reply.steps)

    async def _answer(self, number: int, command: Command) -> Profiled:
        asked: asyncio.Future[Profiled] = asyncio.get_running_loop().create_future()
        self._open[number] = asked
        self._send(command)
        try:
            await asyncio.wait({asked}, timeout=_TIMEOUT)
        finally:
            self._open.pop(number, None)
        if not asked.done():
            raise EngineDead(f"the engine did not answer within {_TIMEOUT:g} s")
        reply = asked.result()
        if reply.error is not None:
            raise from_wire(reply.error)
        return reply

    def receive(self, reply: Profiled) -> None:
        asked = self._open.pop(reply.number, None)
        if asked is not None:
            asked.set_result(reply)

    def fail(self, error: Exception) -> None:
        """The engine was lost."""
        calls, self._open = self._open, {}
        for asked in calls.values():
            asked.set_exception(error)
            asked.exception()  # Mark it as retrieved: maybe no caller waits any more.
