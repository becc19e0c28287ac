"""The ASGI middleware in front of every route: CORS, the API key, the drain, and the count of requests in flight."""

from __future__ import annotations

import hmac
import re
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.server.context import Context
from headrace.server.cors import CorsSend
from headrace.server.http_errors import HttpError, ShuttingDown, to_http
from headrace.server.page_files import PAGE_PATHS

__all__ = ["OPEN_PATHS", "AccessMiddleware", "EchoSend"]

OPEN_PATHS = frozenset({"/health", *PAGE_PATHS})
"""Paths that need no key: exactly these, after decoding. Every other path needs one, even a path without a route. The
page's files hold no data; its requests need the key."""


_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
"""What is echoed; anything else is not."""


class EchoSend:
    """A `send` that answers with the client's own request id in place of ours."""

    def __init__(self, send: Send, request_id: bytes) -> None:
        self._send, self._header = send, (b"x-request-id", request_id)

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            others = [header for header in message.get("headers", ()) if header[0] != b"x-request-id"]
            message = {**message, "headers": [*others, self._header]}
        await self._send(message)


class AccessMiddleware:
    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app, self._context = app, context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        if _REQUEST_ID.fullmatch(given):
            send = EchoSend(send, given)
        cors = self._context.cors
        origin = None if cors is None else cors.allowed(scope)
        if cors is None or origin is None:
            await self._answer(scope, receive, send)
        elif (headers := cors.preflight(scope, origin)) is not None:
            # Without a key: a browser sends none with a preflight request.
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await self._answer_page(scope, receive, CorsSend(send, origin))

    async def _answer_page(self, scope: Scope, receive: Receive, send: CorsSend) -> None:
        try:
            await self._answer(scope, receive, send)
        except Exception as error:
            # The framework's own answer would bypass this middleware, and the page could not read it.
            if not send.started:
                await self._context.refuse(to_http(error), scope)(scope, receive, send)
            raise

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        if refusal is not None:
            await self._context.refuse(refusal, scope)(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            # Answered as GET; the HTTP server leaves the body out.
            scope = {**scope, "method": "GET"}
        self._context.inflight += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._context.inflight -= 1

    def _refusal(self, scope: Scope) -> HttpError | None:
        path = scope["path"]
        if path not in OPEN_PATHS and not self._authorized(scope):
            return HttpError(
                401,
                "a valid API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        if self._context.draining and path != "/metrics":
            return ShuttingDown()
        return None

    def _authorized(self, scope: Scope) -> bool:
        key = self._context.api_key
        if key is None:
            return True
        authorized = False
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, token = value.partition(b" ")
                authorized |= scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), key)
            elif name == b"x-api-key":
                authorized |= hmac.compare_digest(value, key)
        return authorized
