"""Uvicorn's HTTP/1 connection with additions: limits of size and time for what a client sends, errors in our form for
invalid HTTP, offers of other protocols ignored, and answers without chunks for clients of HTTP/1.0, which have none."""

from __future__ import annotations

from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from headrace.server.descriptor_watch import DescriptorWatch
from headrace.server.http_errors import HttpError, ShuttingDown, error_body
from headrace.server.receive_timeout import BODY, BODY_PAUSE, BODY_TIME, HEAD, HEAD_TIME, ReceiveTimeout

__all__ = ["MAX_HEAD", "MAX_TARGET", "HttpConnection"]

_LINGER = 2.0
"""Seconds in which what a refused client still sends is read and dropped."""
_LAST_LINGER = 0.2
"""The same while the server shuts down."""
_MOST_DROPPED = 16 * 2**20
"""Bytes that are read and dropped, at most."""

MAX_HEAD = 64 * 2**10
"""Bytes of a request line and headers; up to one received piece more."""
MAX_TARGET = 16 * 2**10
"""Bytes of a request's target, the path with its query."""


class HttpConnection(HttpToolsProtocol):
    """One connection of a client. Thread: the event loop's."""

    _head = 0
    """Bytes received while the headers were not complete."""
    _in_head = True
    """True until the headers are complete, and again when the body is complete."""
    _started = False
    """True if a part of a request has come, but not all of it."""
    _offered: bytes | None = None
    """The head of a request that offers another protocol, with the offer removed."""
    _refused = False
    _dropped = 0

    def __init__(self, *arguments: Any, descriptors: DescriptorWatch, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._descriptors = descriptors

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._descriptors.opened(transport.get_extra_info("socket").fileno())
        self._patience = ReceiveTimeout(self.loop, self._busy, self._expired)
        self._patience.wait_for(HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._dropped += len(data)
            if self._dropped > _MOST_DROPPED:
                self.transport.close()
            return
        counted = self._in_head
        self._head += len(data) if counted else 0
        self._unset_keepalive_if_required()
        self._feed(data)
        if counted and self._in_head and self._head > MAX_HEAD and not self._refused:
            message = f"the headers are larger than the {MAX_HEAD} bytes that are accepted"
            self._refuse(HttpError(431, message, code="headers_too_large"))
        self._patience.wait_for(self._awaited())

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self._offered is not None:
                self._ignore_offer(data[offer.args[0] :])
        except httptools.HttpParserError:
            if not self._refused:
                self._refuse(HttpError(400, "this is not a valid HTTP/1.1 request", code="invalid_http"))

    def _ignore_offer(self, rest: bytes) -> None:
        """Ignore the offer of another protocol, as a server may (RFC 9110, 7.8). The parser would take what follows for
        the other protocol, so a new parser reads the same head without the offer, and the body."""
        head, self._offered = self._offered, None
        assert head is not None
        self.parser = httptools.HttpRequestParser(self)
        self._feed(head + rest)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head, self._in_head, self._started = 0, True, True

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_TARGET:
            message = f"the request's target is longer than the {MAX_TARGET} bytes that are accepted"
            self._refuse(HttpError(414, message, code="target_too_long"))
            raise ValueError(message)  # Stops the parser.

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._offered = self._without_offer()
            return
        self._check_transfer_encoding()
        super().on_headers_complete()
        self._in_head = False
        if self.scope["http_version"] == "1.0":
            _send_plain(self.cycle)

    def _without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _check_transfer_encoding(self) -> None:
        """Refuse every transfer coding but chunked, since no other is decoded. Raising here stops the parser."""
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and [coding.strip().lower() for coding in codings] != [b"chunked"]:
            message = "the only supported transfer coding is chunked: send the body without another"
            self._refuse(HttpError(501, message, code="unsupported_transfer_encoding"))
            raise ValueError(message)

    def on_message_complete(self) -> None:
        if self._offered is not None:
            return
        super().on_message_complete()
        # The next bytes on this connection belong to another head.
        self._head, self._in_head, self._started = 0, True, False

    def refuse_unfinished(self) -> None:
        """The server shuts down: answer a request whose body is not complete with an error."""
        if self._awaited() == BODY:
            self._refuse_late(ShuttingDown(), _LAST_LINGER)

    def abort_unread(self) -> None:
        """The server shuts down: abort an answer that the client has not read by now."""
        if self._answering():
            self.transport.abort()

    def shutdown(self) -> None:
        if self._refused:
            self.transport.close()
        else:
            super().shutdown()

    def _awaited(self) -> str | None:
        """What the client must send next, HEAD or BODY; None if nothing is due."""
        if self._refused:
            return None
        if not self._in_head:
            return BODY
        # While a request is answered and no byte of another has come, the client waits for the server.
        return HEAD if self._started or not self._answering() else None

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _busy(self, awaited: str) -> bool:
        return self.flow.read_paused or bool(self.pipeline) or (awaited == HEAD and self._answering())

    def _expired(self, awaited: str) -> None:
        if awaited == HEAD:
            limits = f"head took longer than {HEAD_TIME:.0f} seconds"
        else:
            limits = f"body took longer than {BODY_TIME:.0f} seconds, or nothing of it came for {BODY_PAUSE:.0f}"
        self._refuse_late(HttpError(408, f"the request's {limits}", code="request_timeout"), _LINGER)

    def _refuse_late(self, error: HttpError, linger: float) -> None:
        """Send the error, unless there is no request or its answer has started."""
        if not self._started or (not self._in_head and self.cycle.response_started):
            self.transport.close()
        else:
            self._refuse(error, linger)

    def _refuse(self, error: HttpError, linger: float = _LINGER) -> None:
        """Send the error and close the sending side alone: a socket that is closed while data comes in is reset, and
        the client may lose the answer (RFC 9112, 9.6)."""
        self._refused = True
        if self._answering():
            # The answer to an earlier request on this connection can no longer be sent.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = msgspec.json.encode(error_body(error))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        # The rest is still read, and dropped.
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(linger, self.transport.close)
        else:
            self.transport.close()


def _send_plain(cycle: RequestResponseCycle) -> None:
    """Send the answer without chunks. A body without a declared length ends with the connection, which is closed."""
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
