"""Gives each request of a server with several models to its model, which is loaded first if need be.

A request names its model in its body, or in the query of routes without a body; without a name it is for the first
model. Routes that are not about a model get the server's own state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from headrace.config_fields import parse_duration
from headrace.errors import InvalidRequest
from headrace.server import pool_routes, routes
from headrace.server.cache_stream import cache_events
from headrace.server.caller import caller_of
from headrace.server.cancel_scope import CancelScope, ClientDisconnected
from headrace.server.context import Context
from headrace.server.engine_state import engine_state
from headrace.server.error_forms import family_of
from headrace.server.http_errors import HttpError
from headrace.server.model_pool import ModelPool
from headrace.server.open_models import find_open, open_models
from headrace.server.request_body import decode_body, read_body
from headrace.server.route_spec import Route, RouteSpec
from headrace.server.schemas import Body
from headrace.server.served_model import ServedModel

__all__ = ["not_admin", "pooled_endpoint"]

Endpoint = Callable[[Request], Awaitable[Response]]
_IN_QUERY: frozenset[Route] = frozenset({routes.tokenizer_info})
_LOADED_IN_QUERY: frozenset[Route] = frozenset({engine_state, cache_events})
"""Those that look at a model, and do not load it."""


class NamingBody(Body, forbid_unknown_fields=False):
    """The part of any body that says which model it is for, and for how long it stays loaded."""

    model: str | None = None
    keep_alive: Any = None
    messages: msgspec.Raw = msgspec.Raw(b"null")
    prompt: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def only_unloads(self) -> bool:
        """True for a request of Ollama's API that has nothing to answer, and ends the model's stay."""
        empty = (b"null", b"[]", b'""')
        return bytes(self.messages) in empty and bytes(self.prompt) in empty and _seconds(self.keep_alive) == 0


def pooled_endpoint(pool: ModelPool, front: Context, row: RouteSpec) -> Endpoint:
    """The endpoint of a route, where there are several models."""
    answer = _way(pool, front, row)

    async def endpoint(request: Request) -> Response:
        if row.needs_admin and not caller_of(request.scope).admin:
            raise not_admin()
        return await answer(request)

    return endpoint


def not_admin() -> HttpError:
    return HttpError(403, "this key may not control the engine: its entry has no `admin`", code="not_allowed")


def _way(pool: ModelPool, front: Context, row: RouteSpec) -> Endpoint:
    route = row.route
    own = pool_routes.POOLED.get(route)
    if own is not None:
        return partial(own, pool, front)
    if row.names_model:
        return partial(_by_body, pool, front, route)
    if route in _IN_QUERY:
        return partial(_by_query, pool, front, route)
    if route in _LOADED_IN_QUERY:
        return partial(_if_loaded, pool, route)
    return partial(route, front)


async def _by_query(pool: ModelPool, front: Context, route: Route, request: Request) -> Response:
    model = find_open(pool, request.scope, request.query_params.get("model"))
    return await _answered(pool, front, model, route, request, request.receive)


async def _by_body(pool: ModelPool, front: Context, route: Route, request: Request) -> Response:
    body, receive = await read_body(request), request.receive
    request = Request(request.scope, _again(body, receive))
    named = decode_body(body, NamingBody)
    model = find_open(pool, request.scope, named.model)
    if family_of(request.scope) != "ollama":
        return await _answered(pool, front, model, route, request, receive)
    keep_alive = _seconds(named.keep_alive)
    if named.only_unloads:
        model.keep_alive = 0.0
        pool.watch_idle(model)
        return await route(replace(front, model=model.name, aliases=model.plan.aliases), request)
    return await _answered(pool, front, model, route, request, receive, keep_alive)


async def _answered(
    pool: ModelPool,
    front: Context,
    model: ServedModel,
    route: Route,
    request: Request,
    receive: Receive,
    keep_alive: float | None = None,
) -> Response:
    """`receive`: what comes after the body. `keep_alive`: the request's own, in seconds."""
    context = await _acquired(pool, front, model, receive)
    model.keep_alive = model.plan.keep_alive if keep_alive is None else None if keep_alive < 0 else keep_alive
    try:
        response = await route(context, request)
    except BaseException:
        pool.release(model)
        raise
    return _HeldResponse(response, pool, model)


async def _acquired(pool: ModelPool, front: Context, model: ServedModel, receive: Receive) -> Context:
    """As `ModelPool.acquire`, until the client leaves or the server stops."""
    if model.context is not None:
        # Nearly always: without a task that watches the client.
        return await pool.acquire(model)
    async with CancelScope(front.active, receive) as scope:
        try:
            return await pool.acquire(model)
        except asyncio.CancelledError:
            why = scope.reason()
            if why is None:
                raise
            if isinstance(why, ClientDisconnected):
                raise HttpError(499, "the client has left", code="client_left") from None
            raise why from None


async def _if_loaded(pool: ModelPool, route: Route, request: Request) -> Response:
    named = request.query_params.get("model")
    model = find_open(pool, request.scope, named)
    if named is None and model.context is None:
        # Tools that know of one engine get the one that was used last.
        loaded = [one for one in open_models(pool, request.scope) if one.context is not None]
        model = max(loaded, key=lambda one: one.used_at, default=model)
    if model.context is None:
        raise HttpError(409, model.why_absent, param="model", code="model_not_loaded")
    return await route(model.context, request)


class _HeldResponse(Response):
    """A response during which its model stays."""

    def __init__(self, response: Response, pool: ModelPool, model: ServedModel) -> None:
        super().__init__()
        self._response, self._pool, self._model = response, pool, model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            self._pool.release(self._model)


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives a body that has been read once more."""
    given = False

    async def give() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give


def _seconds(keep_alive: Any) -> float | None:
    """Raises InvalidRequest."""
    if keep_alive is None or isinstance(keep_alive, bool):
        return None
    try:
        return float(parse_duration(keep_alive))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        message = f"`keep_alive` {keep_alive!r:.60} is no time: write it as 300, 10m or -1"
        raise InvalidRequest(message, "keep_alive", "invalid_value") from None
