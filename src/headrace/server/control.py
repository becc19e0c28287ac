"""Routes with which an operator controls the models, there only with `--enable-control-routes`.

Each takes `?model=NAME`; without it, it is for the first model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from headrace.config_fields import parse_duration
from headrace.environment import read_environment
from headrace.errors import ConfigError, InvalidRequest
from headrace.server.context import Context
from headrace.server.http_errors import HttpError
from headrace.server.model_pool import ModelPool
from headrace.server.route_spec import Route, RouteSpec
from headrace.server.served_model import ServedModel

__all__ = ["POOLED_CONTROL", "ROUTES"]

_WAIT = 30.0
"""Seconds that `/sleep` waits for running requests."""
_STEPS, _MOST_STEPS = 100, 10_000
"""Steps of a profile, after which it ends by itself: it is in memory until then."""


class FlushReply(Struct):
    model: str
    freed_blocks: int
    """Blocks of the KV cache that were cached and are free now."""


class ProfileReply(Struct):
    model: str
    is_profiling: bool
    file: str | None = None
    """The trace, on the server's machine."""
    steps: int | None = None
    """Steps that it shows, or may show."""


class SleepReply(Struct):
    model: str
    is_sleeping: bool


async def reset_prefix_cache(context: Context, request: Request) -> Response:
    """Running requests keep what they use."""
    return _json(FlushReply(context.model, await context.client.flush_cache()))


async def start_profile(context: Context, request: Request) -> Response:
    return _json(await _start(context, request))


async def stop_profile(context: Context, request: Request) -> Response:
    return _json(await _stop(context))


async def _start(context: Context, request: Request) -> ProfileReply:
    steps = _steps(request)
    folder = context.profiles or str(read_environment().cache_dir / "profiles")
    with _conflicts():
        await context.client.start_profile(str(Path(folder).absolute()), steps)
    return ProfileReply(context.model, True, steps=steps)


async def _stop(context: Context) -> ProfileReply:
    with _conflicts():
        report = await context.client.stop_profile()
    return ProfileReply(context.model, False, report.file, report.steps)


@contextmanager
def _conflicts() -> Iterator[None]:
    """What is wrong is the engine's state, not the request."""
    try:
        yield
    except (InvalidRequest, ConfigError) as error:
        raise HttpError(409, str(error), code=getattr(error, "code", None) or "profile_failed") from error


def _steps(request: Request) -> int:
    given = request.query_params.get("steps", str(_STEPS))
    if not (given.isascii() and given.isdecimal() and len(given) < 9 and 1 <= int(given) <= _MOST_STEPS):
        message = f"`steps` {given!r:.60} must be a whole number from 1 to {_MOST_STEPS}"
        raise InvalidRequest(message, "steps", "invalid_value")
    return int(given)


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
    async with _loaded(pool, model) as context:
        return FlushReply(model.name, await context.client.flush_cache())


async def _start_model(pool: ModelPool, model: ServedModel, request: Request) -> ProfileReply:
    async with _loaded(pool, model) as context:
        return await _start(context, request)


async def _stop_model(pool: ModelPool, model: ServedModel, request: Request) -> ProfileReply:
    async with _loaded(pool, model) as context:
        return await _stop(context)


@asynccontextmanager
async def _loaded(pool: ModelPool, model: ServedModel) -> AsyncIterator[Context]:
    """The context of a model that is loaded, and stays so."""
    if model.context is None:
        raise HttpError(409, model.why_absent, code="model_not_loaded")
    context = await pool.acquire(model)
    try:
        yield context
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
    start_profile: _pooled(_start_model),
    stop_profile: _pooled(_stop_model),
    sleep: _pooled(_sleep_model),
    wake_up: _pooled(_wake_model),
    is_sleeping: _pooled(_tell_sleep),
}

ROUTES = (
    RouteSpec(
        "POST", "/reset_prefix_cache", reset_prefix_cache, "Empty the prefix cache", reply=FlushReply, control=True
    ),
    RouteSpec("POST", "/start_profile", start_profile, "Profile the next steps", reply=ProfileReply, control=True),
    RouteSpec("POST", "/stop_profile", stop_profile, "Write the profile to its file", reply=ProfileReply, control=True),
    RouteSpec("POST", "/sleep", sleep, "Let a model give its memory back", reply=SleepReply, control=True),
    RouteSpec("POST", "/wake_up", wake_up, "Load a model that sleeps", reply=SleepReply, control=True),
    RouteSpec("GET", "/is_sleeping", is_sleeping, "Tell whether a model sleeps", reply=SleepReply, control=True),
)
