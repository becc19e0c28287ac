"""Uvicorn's HTTP/1 connection with three things settled: headers have a limit, what is no HTTP is refused in our error shape,
and clients of HTTP/1.0, which know no chunks, get none."""

from __future__ import annotations

from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from headrace.server.errors import HttpError, error_body

__all__ = ["MAX_HEAD", "Connection"]

_LINGER = 2.0
"""Seconds in which what a refused client still sends is read and dropped."""
_MOST_DROPPED = 16 * 2**20
"""Bytes of it."""

MAX_HEAD = 64 * 2**10
"""Bytes of a request line and headers, give or take what arrives in one piece."""


class Connection(HttpToolsProtocol):
    """One connection. Thread: the event loop's."""

    _head = 0
    """Bytes that came while headers were not complete."""
    _in_head = True
    _refused = False
    _dropped = 0

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._dropped += len(data)
            if self._dropped > _MOST_DROPPED:
                self.transport.close()
            return
        counted = self._in_head
        self._head += len(data) if counted else 0
        super().data_received(data)
        if counted and self._in_head and self._head > MAX_HEAD and not self._refused:
            message = f"the headers are larger than the {MAX_HEAD} bytes that are accepted"
            self._refuse(HttpError(431, message, code="headers_too_large"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head, self._in_head = 0, True

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_head = False
        if self.scope["http_version"] == "1.0":
            _send_plain(self.cycle)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        # Whatever comes next on this connection is another head.
        self._head, self._in_head = 0, True

    def send_400_response(self, msg: str) -> None:
        self._refuse(HttpError(400, "this is not a valid HTTP/1.1 request", code="invalid_http"))

    def _refuse(self, error: HttpError) -> None:
        """Answer and end our side alone: a socket that is closed while data comes in is reset, and the client may lose the
        answer with it (RFC 9112, 9.6)."""
        self._refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            # The answer to what came before on this connection has nowhere to go any more.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = msgspec.json.encode(error_body(error))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(_LINGER, self.transport.close)
        else:
            self.transport.close()


def _send_plain(cycle: RequestResponseCycle) -> None:
    """Without a declared length the body ends with the connection, which is closed anyway."""
    send = cycle.send
    open_end = False

    async def plain(message: Any) -> None:
        nonlocal open_end
        if message["type"] == "http.response.start":
            open_end = all(name != b"content-length" for name, _ in message.get("headers", ()))
            if open_end:
                cycle.chunked_encoding = False
        elif open_end:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = plain  # type: ignore[method-assign]
