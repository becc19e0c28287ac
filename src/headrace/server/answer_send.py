"""A `send` that sees the head of the answer: its status, and the headers that every answer gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from starlette.types import Scope, Send

__all__ = ["BODY_SEND", "AnswerSend", "body_send"]

BODY_SEND = "headrace.body_send"
"""The scope's entry with the `send` beneath what looks at heads alone."""

Header = tuple[bytes, bytes]


def body_send(scope: Scope, send: Send) -> Send:
    """What sends the body of an answer whose head `send` has sent: it leaves out all that looks at heads alone, which
    would cost something for every token of a stream."""
    found: Send = scope.get(BODY_SEND, send)
    return found


class AnswerSend:
    def __init__(self, send: Send, request_id: bytes | None) -> None:
        """`request_id`: the client's own, which stands in place of ours."""
        self._send, self._request_id = send, request_id
        self.status = 0
        """0 until the answer begins."""
        self.more: Callable[[], Iterable[tuple[str, str]]] | None = None
        """Gives further headers when the answer begins."""

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: list[Header] = list(message.get("headers", ()))
            if self._request_id is not None:
                headers = [header for header in headers if header[0] != b"x-request-id"]
                headers.append((b"x-request-id", self._request_id))
            if self.more is not None:
                headers += [(name.encode(), value.encode()) for name, value in self.more()]
            message = {**message, "headers": headers}
        await self._send(message)
