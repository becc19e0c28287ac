"""Cross-origin resource sharing (the Fetch standard, 3.3): web pages of the configured origins may read the answers."""

from __future__ import annotations

import re
from typing import Any

from starlette.types import Scope, Send

__all__ = ["Cors", "CorsSend"]

_NAMES = re.compile(rb"[\w!#$%&'*+.^`|~-]+(?: *, *[\w!#$%&'*+.^`|~-]+)*")
_LIMITED = (b"requests", b"tokens")
_MOST_NAMES = 2000
"""Bytes of header names that a preflight may ask for."""

_EXPOSED = b", ".join(
    [
        *(b"request-id", b"x-request-id", b"retry-after", b"retry-after-ms", b"x-headrace-ignored"),
        *(b"x-ratelimit-%s-%s" % (what, kind) for what in (b"limit", b"remaining", b"reset") for kind in _LIMITED),
    ]
)
"""Headers that pages may read."""

Header = tuple[bytes, bytes]


class Cors:
    def __init__(self, origins: str) -> None:
        """`origins` as in `ServerConfig.cors_origin`."""
        self._origins = frozenset(origin.strip().encode() for origin in origins.split(","))

    def allowed(self, scope: Scope) -> bytes | None:
        """The origin that the answer allows; None if the request comes from no page, or from a page that may not read
        the answer."""
        origin = _header(scope, b"origin")
        if origin is None:
            return None
        if b"*" in self._origins:
            return b"*"
        return origin if origin in self._origins else None

    def preflight(self, scope: Scope, origin: bytes) -> list[Header] | None:
        """The headers that answer a browser's preflight request; None for every other request."""
        if scope["method"] != "OPTIONS" or _header(scope, b"access-control-request-method") is None:
            return None
        headers = [
            *_common(origin),
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (b"access-control-max-age", b"600"),
        ]
        names = _header(scope, b"access-control-request-headers") or b""
        if len(names) <= _MOST_NAMES and _NAMES.fullmatch(names):
            headers.append((b"access-control-allow-headers", names))
        if _header(scope, b"access-control-request-private-network") == b"true":
            headers.append((b"access-control-allow-private-network", b"true"))
        return headers


class CorsSend:
    """A `send` that adds the CORS headers to every answer."""

    def __init__(self, send: Send, origin: bytes) -> None:
        self._send, self._origin = send, origin
        self.started = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            exposed = (b"access-control-expose-headers", _EXPOSED)
            headers = [*message.get("headers", ()), *_common(self._origin), exposed]
            message = {**message, "headers": headers}
        await self._send(message)


def _common(origin: bytes) -> list[Header]:
    allowed = (b"access-control-allow-origin", origin)
    return [allowed] if origin == b"*" else [allowed, (b"vary", b"origin")]


def _header(scope: Scope, wanted: bytes) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == wanted), None)
