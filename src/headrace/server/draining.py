"""The end of a process that serves HTTP: running requests finish, and then its connections are closed."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from headrace.server import http_server
from headrace.server.cancel_scope import CancelScope
from headrace.server.http_errors import ShuttingDown
from headrace.server.http_server import HttpServer, StopSignals

__all__ = ["Draining", "drain", "shut_down"]

_log = logging.getLogger(__name__)
_FINAL_EVENTS = 1.0
"""Seconds for sending the error events of requests that outlast the drain; after that their connections are closed."""


class Draining(Protocol):
    """What a server knows of its requests."""

    draining: bool
    """New requests are refused."""
    inflight: int
    active: set[CancelScope]


async def drain(stop: StopSignals, server: HttpServer, requests: Draining, timeout: float) -> None:
    """Refuse new requests and let running ones finish; those that don't finish in time end with an error."""
    requests.draining = True
    if requests.inflight:
        _log.warning("draining: %d requests get up to %g s; a second signal ends them now", requests.inflight, timeout)
    await _until_idle(requests, timeout, stop.now)
    for scope in list(requests.active):
        scope.stop(ShuttingDown())
    server.refuse_unfinished()
    await _until_idle(requests, http_server.HARD_EXIT / 2 if stop.now.is_set() else _FINAL_EVENTS)


async def shut_down(stop: StopSignals, server: HttpServer, serving: asyncio.Task[None]) -> None:
    """Close the connections, and end `serving`, the task of the server."""
    server.should_exit = True
    server.force_exit = stop.now.is_set()
    server.abort_unread()
    await asyncio.wait({serving}, timeout=0.5)
    server.force_exit = True
    await asyncio.wait({serving}, timeout=0.5)


async def _until_idle(requests: Draining, timeout: float, unless: asyncio.Event | None = None) -> None:
    until = time.monotonic() + timeout
    while requests.inflight and time.monotonic() < until and not (unless is not None and unless.is_set()):
        await asyncio.sleep(0.02)
