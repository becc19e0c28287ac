"""The routes that answer for all models of a server with several."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import msgspec
from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from headrace.deadlines import in_time
from headrace.errors import EngineDead, HeadraceError, InvalidRequest
from headrace.server import control, ollama, routes
from headrace.server.context import Context
from headrace.server.lenient_body import read_lenient
from headrace.server.model_files import read_files
from headrace.server.model_pool import ModelPool
from headrace.server.ollama_models import local_model, running_model, show, show_files
from headrace.server.ollama_schemas import LocalModel, LocalModels, PullReply, PullRequest, ShowRequest
from headrace.server.open_models import find_open, open_models
from headrace.server.pool_client import PoolClient
from headrace.server.pool_metrics import pool_metrics
from headrace.server.replies import HealthReply, ModelCard, ModelList
from headrace.server.route_spec import Route
from headrace.server.served_model import ServedModel

__all__ = ["POOLED", "PooledRoute"]

PooledRoute = Callable[[ModelPool, Context, Request], Awaitable[Response]]
_HEALTH_TIMEOUT = 3.0


def _json(data: object) -> Response:
    return Response(msgspec.json.encode(data), media_type="application/json")


async def list_models(pool: ModelPool, front: Context, request: Request) -> Response:
    models = open_models(pool, request.scope)
    cards = await front.workers.run(0, lambda: [_card(front, model) for model in models])
    first, last = (cards[0].id, cards[-1].id) if cards else (None, None)
    return _json(ModelList("list", cards, False, first, last))


async def show_model(pool: ModelPool, front: Context, request: Request) -> Response:
    model = find_open(pool, request.scope, request.path_params["model"])
    return _json(await front.workers.run(0, partial(_card, front, model)))


def _card(front: Context, model: ServedModel) -> ModelCard:
    """Of a model that has not been loaded yet, the context is the one that its files tell."""
    info = model.info
    created = front.client.info.created if info is None else info.created
    told = read_files(str(model.plan.path)).context if info is None else info.max_model_len
    card = routes.model_card(model.name, created or front.started, told)
    card.aliases = sorted(model.plan.aliases) or UNSET
    card.state = model.state
    return card


async def health(pool: ModelPool, front: Context, request: Request) -> Response:
    """200 while at least one model works or can be loaded; with `?model=`, while that model is loaded and works."""
    client = front.client
    assert isinstance(client, PoolClient)
    chosen = request.query_params.get("model")
    names = list(pool.models) if chosen is None else [pool.find(chosen).name]
    try:
        states = await in_time(_HEALTH_TIMEOUT, asyncio.gather(*map(client.health_of, names)))
    except asyncio.TimeoutError:
        raise EngineDead(f"the engines did not answer within {_HEALTH_TIMEOUT:.0f} seconds") from None
    if chosen is not None and states != ["loaded"]:
        raise EngineDead(f"the model {names[0]!r}: {states[0]}")
    await client.check_health()
    works = all(state in ("loaded", "loading", "unloaded", "asleep") for state in states)
    return _json(HealthReply("ok" if works else "degraded", dict(zip(names, states, strict=True))))


async def metrics(pool: ModelPool, front: Context, request: Request) -> Response:
    loaded = pool.loaded
    await asyncio.gather(*map(_refresh, loaded))
    for model in pool.models.values():
        if model not in loaded:
            model.metrics.stats = None
    return Response(pool_metrics(pool, front.metrics), media_type=CONTENT_TYPE_LATEST)


async def _refresh(model: ServedModel) -> None:
    assert model.context is not None
    try:
        model.metrics.stats = await in_time(_HEALTH_TIMEOUT, model.context.client.stats())
    except (HeadraceError, asyncio.TimeoutError):
        model.metrics.stats = None


async def list_local(pool: ModelPool, front: Context, request: Request) -> Response:
    models = open_models(pool, request.scope)
    return _json(LocalModels(await front.workers.run(0, lambda: [_local(front, model) for model in models])))


async def list_running(pool: ModelPool, front: Context, request: Request) -> Response:
    models = [model for model in open_models(pool, request.scope) if model.context is not None]
    return _json(LocalModels(await front.workers.run(0, lambda: list(_running(front, models)))))


def _running(front: Context, models: list[ServedModel]) -> Iterator[LocalModel]:
    for model in models:
        assert model.info is not None
        local = running_model(_local(front, model), model.info, model.expires_in)
        local.size = model.cost
        yield local


def _local(front: Context, model: ServedModel) -> LocalModel:
    created = front.started if model.info is None else model.info.created
    return local_model(model.name, str(model.plan.path), created)


async def show_local(pool: ModelPool, front: Context, request: Request) -> Response:
    """Loads nothing: of a model that has never been loaded, only what its files tell."""
    body, _, _ = await read_lenient(request, ShowRequest)
    model = _named(pool, request, body.model or body.name)
    if model.context is not None:
        model.shown = await front.workers.run(0, partial(show, model.context))
    elif model.shown is None:
        path = str(model.plan.path)
        model.shown = await front.workers.run(0, partial(show_files, model.name, path, front.started))
    return _json(model.shown)


async def pull(pool: ModelPool, front: Context, request: Request) -> Response:
    body, _, _ = await read_lenient(request, PullRequest)
    _named(pool, request, body.model or body.name)
    return ollama.lines(PullReply("success"), body.stream is not False)


def _named(pool: ModelPool, request: Request, name: str | None) -> ServedModel:
    if name is None:
        raise InvalidRequest("`model` is required", "model", "missing_required_parameter")
    return find_open(pool, request.scope, name)


POOLED: dict[Route, PooledRoute] = {
    routes.list_models: list_models,
    routes.show_model: show_model,
    routes.health: health,
    routes.metrics: metrics,
    ollama.list_local: list_local,
    ollama.list_running: list_running,
    ollama.show_local: show_local,
    ollama.pull: pull,
    **control.POOLED_CONTROL,
}
"""The form of a route for several models, by its form for one."""
