"""A small HTTP/1.1 client for many requests to few engines: connections that stay open, bodies as they arrive.

A general client takes several times as long per request as the rest of the router. Thread: the event loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import httptools

from headrace.deadlines import in_time

__all__ = ["Answer", "Origin", "UpstreamLost"]

_HIGH, _LOW = 256 * 2**10, 64 * 2**10
"""Bytes of an answer that wait: above the first nothing more is read, until there are fewer than the second."""
_IDLE = 60.0
"""Seconds for which an unused connection is kept; engines keep theirs for longer."""
_MOST_IDLE = 256
_CONNECT_TIMEOUT = 3.0
Headers = Sequence[tuple[bytes, bytes]]


class UpstreamLost(Exception):
    """The engine could not be reached, or its connection ended before the answer was complete."""


class Origin:
    """One engine's address, with its open connections."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self.authority = parts.netloc.rpartition("@")[2].encode()
        self._idle: deque[tuple[float, _Connection]] = deque()
        self._busy: set[_Connection] = set()

    async def ask(self, method: bytes, target: bytes, headers: Headers, body: bytes = b"") -> Answer:
        """Send a request and return its answer once the head has arrived. Raises UpstreamLost. The caller must read
        the answer to its end, or close it."""
        head = [method + b" " + target + b" HTTP/1.1\r\nhost: " + self.authority]
        head += [name + b": " + value for name, value in headers]
        if body or method == b"POST":
            head.append(b"content-length: %d" % len(body))
        data = b"\r\n".join(head) + b"\r\n\r\n" + body
        # Engines keep idle connections for longer than they are kept here: one that ends now ends with its engine.
        connection = self._take() or await self._connect()
        self._busy.add(connection)
        answer = Answer(self, connection)
        try:
            await connection.start(answer, data)
        except BaseException:
            self.discard(connection)
            raise
        return answer

    def _take(self) -> _Connection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            since, connection = self._idle.pop()
            if connection.usable and now - since < _IDLE:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        loop, connection = asyncio.get_running_loop(), _Connection()
        try:
            await in_time(_CONNECT_TIMEOUT, loop.create_connection(lambda: connection, self.host, self.port))
        except asyncio.TimeoutError:
            raise UpstreamLost(f"no connection within {_CONNECT_TIMEOUT:g} s") from None
        except OSError as error:
            raise UpstreamLost(f"no connection: {error.strerror or error}") from None
        except asyncio.CancelledError:
            connection.close()  # It may just have been made.
            raise
        return connection

    def keep(self, connection: _Connection) -> None:
        self._busy.discard(connection)
        if connection.usable and len(self._idle) < _MOST_IDLE:
            self._idle.append((asyncio.get_running_loop().time(), connection))
        else:
            connection.close()

    def discard(self, connection: _Connection) -> None:
        self._busy.discard(connection)
        connection.close()

    def abort(self, why: str) -> None:
        """End all connections: whoever reads from one gets UpstreamLost."""
        for connection in list(self._busy):
            connection.fail(why)
        while self._idle:
            self._idle.pop()[1].close()

    def close(self) -> None:
        self.abort("the router shuts down")


class Answer:
    """The answer to one request: `status` and `headers` are complete, the body comes in pieces."""

    def __init__(self, origin: Origin, connection: _Connection) -> None:
        self._origin, self._connection = origin, connection
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        """Everything has arrived; pieces may still wait to be read."""
        self.lost: str | None = None
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._left = False

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    async def read(self) -> bytes:
        """What has arrived since the last call; waits for it. Empty at the end. Raises UpstreamLost."""
        while not self._pieces:
            if self.complete:
                self._leave(keep=True)
                return b""
            if self.lost is not None:
                self._leave(keep=False)
                raise UpstreamLost(self.lost)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = self._pieces.popleft() if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._connection.resume()
        return data

    def close(self) -> None:
        """Give up the answer: the engine sees its connection end, and stops working on it. Harmless after the end."""
        self._leave(keep=self.complete and self.lost is None)

    def _leave(self, keep: bool) -> None:
        if not self._left:
            self._left = True
            (self._origin.keep if keep else self._origin.discard)(self._connection)

    # Called by the connection

    def push(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _HIGH:
            self._connection.pause()
        self.wake()

    def end(self, lost: str | None = None) -> None:
        if lost is None:
            self.complete = True
        elif not self.complete:
            self.lost = lost
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection. It has one request at a time."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._parser: Any = None
        self._answer: Answer | None = None
        self._head: asyncio.Future[None] | None = None
        self._paused = False
        self._keep = True
        self.usable = True

    async def start(self, answer: Answer, data: bytes) -> None:
        """Send a request; returns when the head of its answer is complete. Raises UpstreamLost."""
        self._answer = answer
        self._parser = httptools.HttpResponseParser(self)
        if not self.usable or self._transport.is_closing():
            raise UpstreamLost("its connection was closed at once")
        self._head = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        await self._head

    def pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            with contextlib.suppress(RuntimeError):  # It is closing.
                self._transport.resume_reading()

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.close()

    def fail(self, why: str) -> None:
        self.usable = False
        self._end(why)
        self._transport.abort()

    def _end(self, why: str) -> None:
        answer, self._answer = self._answer, None
        if self._head is not None and not self._head.done():
            self._head.set_exception(UpstreamLost(why))
        elif answer is not None:
            answer.end(why)

    # asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.close()  # Nothing was asked.
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.usable = False
            self._end("its answer is not valid HTTP")
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        self._end("its connection was closed")

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None:
            self._answer.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._answer is None or self._head is None:
            return
        self._answer.status = self._parser.get_status_code()
        self._keep = self._parser.should_keep_alive()
        if not self._head.done():
            self._head.set_result(None)

    def on_body(self, data: bytes) -> None:
        if self._answer is not None:
            self._answer.push(data)

    def on_message_complete(self) -> None:
        answer, self._answer = self._answer, None
        self.usable = self.usable and self._keep
        if answer is not None:
            answer.end()
