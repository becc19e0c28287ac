"""The ASGI middleware in front of every route: CORS, the API key and its limits, the drain, the record of each request,
and the count of those in flight."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.errors import RateLimited
from headrace.keys.key_ring import ANYONE
from headrace.keys.limiter import Limiter
from headrace.server.answer_send import BODY_SEND, AnswerSend
from headrace.server.cache_forms import EVENTS_PATH
from headrace.server.caller import CALLER
from headrace.server.context import Context
from headrace.server.cors import CorsSend
from headrace.server.http_errors import HttpError, ShuttingDown, to_http
from headrace.server.page_files import DOCS_PATHS, PAGE_PATHS
from headrace.server.request_record import RequestRecord, record_of

__all__ = ["OPEN_PATHS", "AccessMiddleware", "sent_keys"]

OPEN_PATHS = frozenset({"/health", *PAGE_PATHS, *DOCS_PATHS})
"""Paths that need no key: exactly these, after decoding. Every other path needs one, even a path without a route. The
files of the page and of `/docs` hold no data; their requests need the key."""


_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
"""What is echoed; anything else is not."""


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
        prefix = self._context.root_path
        if prefix and scope["path"].startswith(prefix):
            if scope["path"] == prefix:
                # The page's addresses are relative to the slash.
                await Response(status_code=308, headers={"location": f"{prefix}/"})(scope, receive, send)
                return
            if scope["path"][len(prefix)] == "/":
                scope = {**scope, "path": scope["path"][len(prefix) :]}
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        answer = AnswerSend(send, given if _REQUEST_ID.fullmatch(given) else None)
        scope[BODY_SEND] = send
        record = RequestRecord(time.monotonic())
        record.put(scope)
        try:
            await self._with_cors(scope, receive, answer)
        except Exception:
            # The framework answers it, outside of this middleware.
            answer.status = answer.status or 500
            raise
        finally:
            record.status, record.ended = answer.status, time.monotonic()
            self._context.note(scope, record)

    async def _with_cors(self, scope: Scope, receive: Receive, send: AnswerSend) -> None:
        cors = self._context.cors
        origin = None if cors is None else cors.allowed(scope)
        if cors is None or origin is None:
            await self._answer(scope, receive, send, send)
        elif (headers := cors.preflight(scope, origin)) is not None:
            # Without a key: a browser sends none with a preflight request.
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await self._answer_page(scope, receive, CorsSend(send, origin), send)

    async def _answer_page(self, scope: Scope, receive: Receive, send: CorsSend, answer: AnswerSend) -> None:
        try:
            await self._answer(scope, receive, send, answer)
        except Exception as error:
            # The framework's own answer would bypass this middleware, and the page could not read it.
            if not send.started:
                await self._context.refuse(to_http(error), scope)(scope, receive, send)
            raise

    async def _answer(self, scope: Scope, receive: Receive, send: Send, answer: AnswerSend) -> None:
        try:
            limiter = self._admit(scope, answer)
        except (HttpError, RateLimited) as error:
            await self._context.refuse(to_http(error), scope)(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            # Answered as GET; the HTTP server leaves the body out.
            scope = {**scope, "method": "GET"}
        # A router that follows the events would be a request that never ends.
        counted = scope["path"] != EVENTS_PATH
        self._context.inflight += counted
        try:
            await self._app(scope, receive, send)
        finally:
            self._context.inflight -= counted
            if limiter is not None:
                limiter.leave()

    def _admit(self, scope: Scope, answer: AnswerSend) -> Limiter | None:
        """Find the caller, and let the request in. Returns the limiter that it has entered. Raises HttpError and
        RateLimited."""
        path, context = scope["path"], self._context
        caller = scope.get(CALLER) or context.keys.find(sent_keys(scope))
        if caller is None:
            if path not in OPEN_PATHS:
                raise HttpError(
                    401,
                    "a valid API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )
            caller = ANYONE
        scope[CALLER] = caller
        record = record_of(scope)
        assert record is not None
        record.caller = caller.name
        if context.draining and path != "/metrics":
            raise ShuttingDown()
        limiter: Limiter | None = caller.limiter
        if limiter is None or path not in context.limited_paths or scope["method"] != "POST":
            return None
        answer.more = lambda: limiter.headers(time.monotonic())
        limiter.enter(time.monotonic())
        return limiter


def sent_keys(scope: Scope) -> Iterator[bytes]:
    """The keys that a request sends."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer":
                yield token.strip()
        elif name == b"x-api-key":
            yield value
