"""Waiting for something for so many seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["in_time"]

_T = TypeVar("_T")


async def in_time(seconds: float, work: Awaitable[_T]) -> _T:
    """The result of `work`, which is cancelled after `seconds`. Raises asyncio.TimeoutError then, and what it raises.

    `asyncio.wait_for` forgets a cancellation that comes in the moment in which `work` ends, up to Python 3.11: whoever
    waits in a loop then never ends. Here the cancellation counts, and the result is dropped; `work` must leave nothing
    open that only its result could close.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _ended(task)
        raise
    if task.done():
        return task.result()
    await _ended(task)
    if not task.cancelled() and task.exception() is None:
        return task.result()
    raise asyncio.TimeoutError


async def _ended(task: asyncio.Future[_T]) -> None:
    """Cancel it; returns when it has ended, whatever it says then."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
