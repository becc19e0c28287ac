"""The parts of a process that serves HTTP: its server, and the signals that end it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from headrace.errors import ConfigError
from headrace.server.descriptor_watch import DescriptorWatch
from headrace.server.http_connection import HttpConnection
from headrace.server.listening import Tls

__all__ = [
    "HARD_EXIT",
    "HttpServer",
    "StopSignals",
    "ignoring_signals_after",
    "make_server",
    "print_line",
    "signals",
    "until_started",
    "wait_for_either",
]

HARD_EXIT = 1.0
"""Seconds between a second signal and a hard exit."""
_KEEP_ALIVE = 75
"""Seconds; longer than common clients keep a connection in their pool, so that they never reuse one that the server has
just closed."""


async def ignoring_signals_after(work: Coroutine[Any, Any, int]) -> int:
    code = await work
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    return code


class StopSignals:
    """Events of the first and the second signal."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()

    def on_signal(self) -> None:
        if not self.drain.is_set():
            self.drain.set()
            return
        self.now.set()
        # Nothing may delay the exit, not even a thread that cannot be stopped. The engine ends with this process.
        asyncio.get_running_loop().call_later(HARD_EXIT, os._exit, 0)


@contextlib.contextmanager
def signals(stop: StopSignals) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


class HttpServer(uvicorn.Server):
    """Uvicorn without its own signal handlers, which would close the port at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def refuse_unfinished(self) -> None:
        """Refuse the requests whose body is not complete."""
        for connection in self._connections():
            connection.refuse_unfinished()

    def abort_unread(self) -> None:
        """Abort the answers that clients have not read."""
        for connection in self._connections():
            connection.abort_unread()

    def _connections(self) -> list[HttpConnection]:
        return [one for one in self.server_state.connections if isinstance(one, HttpConnection)]


def make_server(app: ASGIApp, descriptors: DescriptorWatch, tls: Tls | None = None) -> HttpServer:
    config = uvicorn.Config(
        app,
        loop="none",
        http=partial(HttpConnection, descriptors=descriptors),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
    )
    config.load()
    config.ssl = None if tls is None else tls.context
    return HttpServer(config)


def print_line(text: str) -> None:
    """Print to stdout. A closed pipe or a full disk does not end the server: serving goes on."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def until_started(server: HttpServer, serving: asyncio.Task[None]) -> None:
    while not server.started:
        if serving.done():
            try:
                serving.result()
            except OSError as error:
                raise ConfigError(f"cannot listen: {error}; choose another --port or --host") from None
            raise ConfigError("the HTTP server ended before it had started")
        await asyncio.sleep(0.005)


async def wait_for_either(event: asyncio.Event, task: asyncio.Task[None]) -> None:
    waiter = asyncio.ensure_future(event.wait())
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if task.done():
        task.result()
