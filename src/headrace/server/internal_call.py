"""Calls a route of the application from within, as a client would."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.types import ASGIApp

from headrace.keys.key_ring import Caller
from headrace.server.caller import CALLER

__all__ = ["InternalReply", "call_route", "passes"]


class InternalReply(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


def passes(reply: InternalReply) -> bool:
    """Whether what was in the way passes: there was no room, or the engine starts again. A model that cannot be loaded
    as it is does not."""
    return reply.status == 503 and reply.headers.get(b"x-should-retry") != b"false"


async def call_route(app: ASGIApp, path: str, body: bytes, caller: Caller | None) -> InternalReply:
    """POST `body` as JSON, for a client that counts towards no limit; None: for one without a key. Cancelling it
    cancels the request."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "server": None,
        "client": None,
    }
    if caller is not None:
        scope[CALLER] = replace(caller, limiter=None)
    sent = False
    status, answered, pieces = 500, dict[bytes, bytes](), list[bytes]()

    async def receive() -> Any:
        nonlocal sent
        if sent:
            # A client that stays until the answer is complete.
            await asyncio.Event().wait()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status, answered
        if message["type"] == "http.response.start":
            status, answered = message["status"], dict(message.get("headers", ()))
        else:
            pieces.append(message.get("body", b""))

    await app(scope, receive, send)
    return InternalReply(status, answered, b"".join(pieces))
