"""Routes with which an operator controls the models, there only with `--enable-control-routes`.

Each takes `?model=NAME`; without it, it is for the first model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from headrace.config_fields import parse_duration
from headrace.errors import InvalidRequest
from headrace.server.context import Context
from headrace.server.http_errors import HttpError
from headrace.server.model_pool import ModelPool
from headrace.server.route_spec import Route, RouteSpec
from headrace.server.served_model import ServedModel

__all__ = ["POOLED_CONTROL", "ROUTES"]

_WAIT = 30.0
"""Seconds that `/sleep` waits for running requests."""


class FlushReply(Struct):
    model: str
    freed_blocks: int
    """Blocks of the KV cache that were cached and are free now."""


class SleepReply(Struct):
    model: str
    is_sleeping: bool


async def reset_prefix_cache(context: Context, request: Request) -> Response:
    """Running requests keep what they use."""
    return _json(FlushReply(context.model, await context.client.flush_cache()))


async def sleep(context: Context, request: Request) -> Response:
    raise _no_pool()


async def wake_up(context: Context, request: Request) -> Response:
    raise _no_pool()


async def is_sleeping(context: Context, request: Request) -> Response:
    return _json(SleepReply(context.model, False))


def _no_pool() -> HttpError:
    return HttpError(409, "the engine of this application is its maker's: it cannot be unloaded", code="not_supported")


def _json(reply: Struct) -> Response:
    return Response(msgspec.json.encode(reply), media_type="application/json")


async def _flush_model(pool: ModelPool, model: ServedModel, request: Request) -> FlushReply:
    if model.context is None:
        raise HttpError(409, f"the model {model.name!r} is not loaded: it is {model.state}", code="model_not_loaded")
    context = await pool.acquire(model)
    try:
        return FlushReply(model.name, await context.client.flush_cache())
    finally:
        pool.release(model)


async def _sleep_model(pool: ModelPool, model: ServedModel, request: Request) -> SleepReply:
    """Let running requests finish, then unload; the model refuses requests until it is woken."""
    await pool.sleep(model, _seconds(request))
    return SleepReply(model.name, True)


async def _wake_model(pool: ModelPool, model: ServedModel, request: Request) -> SleepReply:
    # A client that leaves ends its wait, and not the load.
    await asyncio.shield(asyncio.ensure_future(pool.wake(model)))
    return SleepReply(model.name, False)


async def _tell_sleep(pool: ModelPool, model: ServedModel, request: Request) -> SleepReply:
    return SleepReply(model.name, model.asleep)


def _seconds(request: Request) -> float:
    given = request.query_params.get("timeout")
    if given is None:
        return _WAIT
    try:
        seconds = parse_duration(given)
    except ValueError:
        seconds = -1.0
    if not isinstance(seconds, float) or not 0 <= seconds <= 86400:
        raise InvalidRequest(f"`timeout` {given!r:.60} is no time: write it as 30 or 5m", "timeout", "invalid_value")
    return seconds


Work = Callable[[ModelPool, ServedModel, Request], Awaitable[Struct]]


def _pooled(work: Work) -> Callable[[ModelPool, Context, Request], Awaitable[Response]]:
    async def route(pool: ModelPool, front: Context, request: Request) -> Response:
        return _json(await work(pool, pool.find(request.query_params.get("model")), request))

    return route


POOLED_CONTROL: dict[Route, Callable[[ModelPool, Context, Request], Awaitable[Response]]] = {
    reset_prefix_cache: _pooled(_flush_model),
    sleep: _pooled(_sleep_model),
    wake_up: _pooled(_wake_model),
    is_sleeping: _pooled(_tell_sleep),
}

ROUTES = (
    RouteSpec(
        "POST", "/reset_prefix_cache", reset_prefix_cache, "Empty the prefix cache", reply=FlushReply, control=True
    ),
    RouteSpec("POST", "/sleep", sleep, "Let a model give its memory back", reply=SleepReply, control=True),
    RouteSpec("POST", "/wake_up", wake_up, "Load a model that sleeps", reply=SleepReply, control=True),
    RouteSpec("GET", "/is_sleeping", is_sleeping, "Tell whether a model sleeps", reply=SleepReply, control=True),
)
