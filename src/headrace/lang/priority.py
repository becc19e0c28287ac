"""Runs whose requests go before or behind those of others."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from headrace.errors import ProgramError, excerpt
from headrace.lang.backend import Backend, ModelSource, Prioritisable
from headrace.lang.running import BlockingSource, Target
from headrace.lang.server_source import Server, server

__all__ = ["check_priority", "prioritised"]

T = TypeVar("T")
_MOST = 2**31


def prioritised(on: Target, priority: int) -> Target:
    """For `on=`: the same model, whose requests get this priority, all of a run's. The lowest runs first; requests have
    0 if they state none. Raises ProgramError for what is no priority."""
    check_priority(priority)
    if isinstance(on, str):
        on = server(on)
    if isinstance(on, Server):
        return on.with_priority(priority)
    if isinstance(on, BlockingSource):
        return _Blocking(on, priority)
    return _Source(on, priority)


def check_priority(priority: int) -> None:
    """Raises ProgramError for what is no priority."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not -_MOST <= priority < _MOST:
        raise ProgramError(f"a priority is a whole number from -2^31 to 2^31 - 1, got {excerpt(priority, 60)}")


class _Blocking:
    """A `running.BlockingSource`."""

    def __init__(self, on: BlockingSource, priority: int) -> None:
        self._on, self._priority = on, priority

    def run_with_backend(self, work: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        return self._on.run_with_backend(lambda backend: work(_at(backend, self._priority)))


class _Source:
    """A `backend.ModelSource`."""

    def __init__(self, on: ModelSource, priority: int) -> None:
        self._on, self._priority = on, priority

    @contextlib.asynccontextmanager
    async def open_backend(self) -> AsyncIterator[Backend]:
        async with self._on.open_backend() as backend:
            yield _at(backend, self._priority)


def _at(backend: Backend, priority: int) -> Backend:
    if not isinstance(backend, Prioritisable):
        raise ProgramError(f"{type(backend).__name__} has no priority of requests")
    return backend.with_priority(priority)
