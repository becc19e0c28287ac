"""The ASGI layer in front of every route: the API key, the drain, and the count of requests in flight."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.server.context import Context
from headrace.server.errors import HttpError, ShuttingDown

__all__ = ["OPEN_PATHS", "Gate"]

OPEN_PATHS = frozenset({"/health"})
"""What is answered without a key: exactly these paths, once decoded. Everything else, known or not, needs one."""


class Gate:
    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app, self._context = app, context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await self._context.refuse(refusal)(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            # As GET; the HTTP server leaves the body out.
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
        good = False
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, token = value.partition(b" ")
                good |= scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), key)
            elif name == b"x-api-key":
                good |= hmac.compare_digest(value, key)
        return good
