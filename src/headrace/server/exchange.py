"""Answers a generation request: complete, or as a stream that is written directly to the connection.

This is the hot path: for each streamed token one struct is filled in, encoded and sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from msgspec import UNSET, UnsetType
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from headrace.client.api import Output
from headrace.server.answer_send import body_send
from headrace.server.caller import admit_prompt, caller_of, charge, own_salt
from headrace.server.cancel_scope import CancelScope, ClientDisconnected
from headrace.server.context import Context
from headrace.server.generation import GenerationRun, close_stream, usage_reply
from headrace.server.heartbeat import Heartbeat
from headrace.server.http_errors import HttpError, to_http
from headrace.server.metrics import RequestMeter
from headrace.server.replies import UsageReply
from headrace.server.request_record import record_of
from headrace.server.stream_form import OPENAI, StreamForm

__all__ = ["CACHED_TOKENS", "FIRST_TOKEN", "Dialect", "Exchange", "ExchangeOptions"]

_log = logging.getLogger(__name__)
_NO_CACHE = (
    (b"cache-control", b"no-cache"),
    # Nginx, and proxies that support this header, forward each piece at once.
    (b"x-accel-buffering", b"no"),
)
CACHED_TOKENS = b"x-headrace-cached-tokens"
FIRST_TOKEN = b"x-headrace-first-token-ms"

ChunkUsage = UsageReply | None | UnsetType


class Dialect(Protocol):
    """Encodes a run in the form of one API."""

    def chunk(self, output: Output, usage: ChunkUsage) -> bytes:
        """The events for one piece; empty if it has nothing to show."""

    def usage_chunk(self, usage: UsageReply) -> bytes:
        """The last events: of OpenAI's chunks the one without choices."""

    def take(self, output: Output) -> None:
        """Add one piece of an answer that is not streamed."""

    def complete(self, usage: UsageReply) -> bytes:
        """The body of an answer that is not streamed, of the pieces taken."""


@dataclass(frozen=True, slots=True)
class ExchangeOptions:
    request_id: str
    arrival: float
    """Monotonic seconds."""
    stream: bool
    include_usage: bool
    """The stream ends with the dialect's `usage_chunk`."""
    continuous_usage: bool = False
    form: StreamForm = OPENAI
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Further headers of the answer."""
    finish: Callable[[], Awaitable[None]] | None = None
    """Called before the last bytes are sent."""


def _body(data: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


class Exchange(Response):
    """The response to a request that has been understood. Nothing is sent before the first output, so that whatever
    goes wrong until then is a plain HTTP error, for streams too; but those whose first output takes long begin with a
    comment."""

    def __init__(self, context: Context, run: GenerationRun, dialect: Dialect, options: ExchangeOptions) -> None:
        super().__init__()
        self._context, self._run, self._dialect, self._options = context, run, dialect, options
        self._meter = RequestMeter(context.metrics, options.arrival, run.choices)
        self._started = False
        self._unfinished = "error"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = self._context.waiting.enter(self._run.usage.prompt_tokens)
        self._meter.on_first = place.leave
        try:
            admit_prompt(scope, self._run.usage.prompt_tokens)
        except BaseException:
            place.leave()
            raise
        if caller_of(scope).salt:
            self._run.salt(partial(own_salt, scope))
        submitted, outputs = time.monotonic(), self._run.outputs()
        try:
            async with CancelScope(self._context.active, receive) as cancel_scope:
                try:
                    await (
                        self._stream(outputs, cancel_scope, send, body_send(scope, send))
                        if self._options.stream
                        else self._complete(outputs, cancel_scope, send)
                    )
                except asyncio.CancelledError:
                    why = cancel_scope.reason()
                    if why is None:
                        raise
                    await self._fail(why, send)
                except Exception as error:
                    await self._fail(error, send)
        finally:
            place.leave()
            await close_stream(outputs)
            usage = self._run.usage
            self._meter.close(usage, self._unfinished)
            charge(scope, usage.completion_tokens)
            self._record(scope, submitted)

    def _record(self, scope: Scope, submitted: float) -> None:
        record = record_of(scope)
        if record is None:
            return
        usage, meter, options = self._run.usage, self._meter, self._options
        record.id, record.model, record.stream = options.request_id, self._context.model, options.stream
        record.prompt_tokens, record.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        record.completion_tokens = usage.completion_tokens
        record.submitted = submitted
        record.queue_seconds, record.first_token = meter.queue_seconds, meter.first_token
        record.finish, record.sampling = ",".join(meter.finishes(self._unfinished)), self._run.sampling

    async def _fail(self, error: Exception, send: Send) -> None:
        """Raise the error before the first byte, for the application's handlers; after it, send it as an event."""
        if isinstance(error, ClientDisconnected):
            self._unfinished = "abort"
            return
        if not self._started:
            raise error
        answer = to_http(error)
        if answer.status == 500 and not isinstance(error, HttpError):
            _log.error("request %s failed", self._options.request_id, exc_info=error)
        await send(_body(self._options.form.error(answer), more=False))

    async def _complete(self, outputs: AsyncIterator[Output], cancel_scope: CancelScope, send: Send) -> None:
        note, take = self._meter.note, self._dialect.take
        async for output in outputs:
            note(output)
            take(output)
        body = self._dialect.complete(usage_reply(self._run.usage))
        await self._finish()
        cancel_scope.release()
        length = str(len(body)).encode()
        plain = (b"content-type", b"application/json"), (b"content-length", length)
        await self._start(send, *plain, *self._first_token_header())
        await send(_body(body, more=False))

    async def _stream(self, outputs: AsyncIterator[Output], cancel_scope: CancelScope, send: Send, write: Send) -> None:
        """`write` sends what comes after the head."""
        comment = self._options.form.comment
        heartbeat = Heartbeat(partial(self._comment, send, comment))
        try:
            await self._pieces(outputs, heartbeat, send, write)
        finally:
            await heartbeat.stop()
        tail = self._options.form.done
        if self._options.include_usage:
            tail = self._dialect.usage_chunk(usage_reply(self._run.usage)) + tail
        await self._finish()
        cancel_scope.release()
        await send(_body(tail, more=False))

    async def _finish(self) -> None:
        if self._options.finish is not None:
            await self._options.finish()

    async def _pieces(self, outputs: AsyncIterator[Output], heartbeat: Heartbeat, send: Send, write: Send) -> None:
        note, chunk = self._meter.note, self._dialect.chunk
        async for output in outputs:
            note(output)
            heartbeat.sent = True
            data = chunk(output, self._chunk_usage())
            if not self._started:
                await self._start_stream(send)
            if data:
                await write(_body(data))

    async def _comment(self, send: Send, comment: bytes | None) -> None:
        """Send a heartbeat comment. After this an error is an event, even if no token has come."""
        if comment is None:
            return
        if not self._started:
            await self._start_stream(send)
        await send(_body(comment))

    def _chunk_usage(self) -> ChunkUsage:
        if self._options.continuous_usage:
            return usage_reply(self._run.usage)
        return None if self._options.include_usage else UNSET

    def _first_token_header(self) -> tuple[tuple[bytes, bytes], ...]:
        """Milliseconds from the request's arrival to its first token: of an answer that is not streamed, nobody could
        tell otherwise."""
        if self._meter.first_token is None:
            return ()
        return ((FIRST_TOKEN, b"%.1f" % (1000 * (self._meter.first_token - self._options.arrival))),)

    async def _start_stream(self, send: Send) -> None:
        await self._start(send, (b"content-type", self._options.form.media), *_NO_CACHE)

    def _cache_header(self) -> tuple[tuple[bytes, bytes], ...]:
        """How many prompt tokens came from the cache, unless nothing is known before the first output."""
        if self._run.first_at is None:
            return ()
        return ((CACHED_TOKENS, str(self._run.usage.cached_tokens).encode()),)

    async def _start(self, send: Send, *headers: tuple[bytes, bytes]) -> None:
        self._started = True
        name = b"request-id" if self._options.form.family == "anthropic" else b"x-request-id"
        own = (name, self._options.request_id.encode())
        headers = (*headers, own, *self._cache_header(), *self._options.headers)
        await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
