"""`/v1/programs`: runs plans of `headrace.lang` on the engine.

A stream's events are by variable. A call-out is an event, too, and the client answers it with another request. A
program ends with its connection, with `DELETE`, at its timeout or when the server stops; all that it has in the engine
ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.errors import HeadraceError, InvalidRequest, Overloaded
from headrace.server.caller import charge, own_salt, owner_of
from headrace.server.cancel_scope import CancelScope, ClientDisconnected
from headrace.server.context import Context
from headrace.server.heartbeat import COMMENT, Heartbeat
from headrace.server.http_errors import HttpError, error_body, to_http
from headrace.server.metrics import ProgramCounts
from headrace.server.plan_store import StoredPlan
from headrace.server.program_schemas import (
    ProgramEvent,
    ProgramReply,
    ProgramRequest,
    ProgramsReply,
    ToolOutputReply,
    ToolOutputRequest,
)
from headrace.server.request_body import read_json
from headrace.server.request_ids import new_request_id
from headrace.server.request_record import record_of
from headrace.server.route_spec import RouteSpec
from headrace.server.stream_form import DONE, event

__all__ = ["ROUTES", "answer_program", "answer_tool_call", "cancel_program", "tell_limits", "with_language"]

_log = logging.getLogger(__name__)
T = TypeVar("T")
_INLINE = 16 * 2**10
"""Bytes. A plan of a document up to this size is read in the event loop; a larger one in a thread."""
MOST_PROGRAMS = 256
"""Programs that run at once."""


class RunningProgram(Protocol):
    """The members of `program_run.ProgramRun` that the routes use."""

    name: str
    owner: str
    """The name of the client's key; other clients cannot reach it."""
    events: asyncio.Queue[ProgramEvent | None]
    task: asyncio.Task[ProgramReply] | None

    @property
    def usage(self) -> ProgramCounts: ...

    def start(self) -> asyncio.Task[ProgramReply]: ...

    def answer(self, call_id: str, output: Any, error: str | None) -> bool: ...

    def event(self, kind: Any, **fields: Any) -> ProgramEvent: ...


async def answer_program(context: Context, request: Request) -> Response:
    body, sent = await read_json(request, ProgramRequest)
    context.check_model(body.model)
    if len(context.programs) >= MOST_PROGRAMS:
        raise Overloaded(f"{MOST_PROGRAMS} programs are running, and no more may", retry_after=1.0)
    owner = owner_of(request.scope)
    body.cache_salt = own_salt(request.scope, body.cache_salt or "") or None
    make = await with_language(context, len(sent), partial(_read, body, _stored(context, owner, body)))
    run = make(context, new_request_id("prog"))
    run.owner = owner
    return _ProgramExchange(context, run, bool(body.stream))


async def with_language(context: Context, size: int, work: Callable[[], T]) -> T:
    """Call `work`, which needs the language: in a thread if it imports it or reads a body of many bytes."""
    if "headrace.server.program_run" in sys.modules and size <= _INLINE:
        return work()
    return await context.workers.run(size, work)


def _stored(context: Context, owner: str, body: ProgramRequest) -> StoredPlan | None:
    """The stored plan that a program runs. Raises InvalidRequest and HttpError."""
    if (body.plan is None) == (body.plan_id is None):
        raise InvalidRequest("give a plan: `plan`, or the `plan_id` of a stored one", "plan", "invalid_value")
    if body.plan_id is None:
        return None
    found = context.plans.get(owner, body.plan_id)
    if found is None:
        message = f"no plan {body.plan_id!r} is stored: store it again by PUT /v1/plans, or send it as `plan`"
        raise HttpError(404, message, param="plan_id", code="plan_not_found")
    return found


def _read(body: ProgramRequest, stored: StoredPlan | None) -> Callable[[Context, str], RunningProgram]:
    """Import the language with the first program, and read the body: what makes its run. Runs in any thread."""
    from headrace.server.program_run import ProgramRun, read_program

    plan, inputs = read_program(body, stored)
    return lambda context, name: ProgramRun(context, name, plan, inputs, body)


async def tell_limits(context: Context, request: Request) -> Response:
    def reply() -> bytes:
        from headrace.server.program_run import limits_reply

        return msgspec.json.encode(ProgramsReply("programs", (1, 0), len(context.programs), limits_reply()))

    return Response(await with_language(context, 0, reply), media_type="application/json")


async def answer_tool_call(context: Context, request: Request) -> Response:
    body, _ = await read_json(request, ToolOutputRequest)
    run = _running(context, request)
    if not run.answer(body.call_id, body.output, body.error):
        raise HttpError(404, f"no call {body.call_id[:200]!r} waits for an output", param="call_id", code="not_found")
    return Response(msgspec.json.encode(ToolOutputReply(run.name, body.call_id)), media_type="application/json")


async def cancel_program(context: Context, request: Request) -> Response:
    run = _running(context, request)
    assert run.task is not None
    run.task.cancel()
    return Response(msgspec.json.encode({"id": run.name, "cancelled": True}), media_type="application/json")


def _running(context: Context, request: Request) -> RunningProgram:
    name = request.path_params["id"]
    run: RunningProgram | None = context.programs.get(name)
    if run is None or run.owner != owner_of(request.scope):
        raise HttpError(404, f"no program {name[:200]!r} is running", param="id", code="not_found")
    return run


class _ProgramExchange(Response):
    """The answer to a program: what goes wrong before a stream begins is an HTTP error, and an event after that."""

    def __init__(self, context: Context, run: RunningProgram, stream: bool) -> None:
        super().__init__()
        self._context, self._run, self._streams = context, run, stream
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        run, context = self._run, self._context
        context.programs[run.name] = run
        task = run.start()
        how = "error"
        try:
            async with CancelScope(context.active, receive) as cancel_scope:
                try:
                    await (self._stream(task, send) if self._streams else self._complete(task, send))
                    how = "completed"
                except asyncio.CancelledError:
                    why = cancel_scope.reason()
                    if why is None and not task.cancelled():
                        raise
                    how = "cancelled"
                    await self._fail(why, send)
                except Exception as error:
                    await self._fail(error, send)
                cancel_scope.release()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            context.programs.pop(run.name, None)
            context.metrics.note_program(how, run.usage)
            charge(scope, run.usage.prompt_tokens + run.usage.completion_tokens)
            _record(scope, context, run, how)

    async def _complete(self, task: asyncio.Task[ProgramReply], send: Send) -> None:
        data = msgspec.json.encode(await task)
        await self._start(send, b"application/json")
        await send({"type": "http.response.body", "body": data})

    async def _stream(self, task: asyncio.Task[ProgramReply], send: Send) -> None:
        await self._start(send, b"text/event-stream; charset=utf-8")
        heartbeat = Heartbeat(partial(self._write, send, COMMENT))
        try:
            await self._tell(send, self._run.event("program.created", id=self._run.name))
            while (one := await self._run.events.get()) is not None:
                heartbeat.sent = True
                await self._tell(send, one)
            reply = await task
        finally:
            await heartbeat.stop()
        await self._tell(send, self._run.event("program.completed", program=reply), DONE)

    async def _fail(self, error: Exception | None, send: Send) -> None:
        """`error` None: the program was cancelled by a request."""
        if isinstance(error, ClientDisconnected):
            return
        if not self._started:
            raise error or HttpError(409, "the program was cancelled", code="cancelled")
        if error is None:
            await self._tell(send, self._run.event("program.cancelled"), DONE)
            return
        answer = to_http(error)
        if answer.status == 500 and not isinstance(error, (HttpError, HeadraceError)):
            _log.error("program %s failed", self._run.name, exc_info=error)
        detail = error_body(answer).error
        await self._tell(send, self._run.event("program.failed", error=detail, status=answer.status), DONE)

    async def _start(self, send: Send, media: bytes) -> None:
        self._started = True
        headers = [(b"content-type", media), (b"x-request-id", self._run.name.encode())]
        if self._streams:
            headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _tell(self, send: Send, one: ProgramEvent, tail: bytes = b"") -> None:
        await send({"type": "http.response.body", "body": event(one) + tail, "more_body": not tail})

    async def _write(self, send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})


def _record(scope: Scope, context: Context, run: RunningProgram, how: str) -> None:
    record = record_of(scope)
    if record is not None:
        usage = run.usage
        record.id, record.model, record.finish = run.name, context.model, how
        record.prompt_tokens, record.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        record.completion_tokens = usage.completion_tokens


ROUTES = (
    RouteSpec("POST", "/v1/programs", answer_program, "Run a plan", ProgramRequest, ProgramReply, ProgramEvent),
    RouteSpec("GET", "/v1/programs", tell_limits, "Tell the limits of plans", reply=ProgramsReply),
    RouteSpec(
        "POST",
        "/v1/programs/{id}/tool_outputs",
        answer_tool_call,
        "Answer a call of a running program",
        ToolOutputRequest,
        ToolOutputReply,
    ),
    RouteSpec("DELETE", "/v1/programs/{id}", cancel_program, "Cancel a running program"),
)
