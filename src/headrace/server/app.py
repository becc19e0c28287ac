"""The FastAPI application: routes and error handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from headrace import __version__
from headrace.client.api import EngineClient
from headrace.config import Config
from headrace.errors import HeadraceError
from headrace.server import (
    batches,
    chat,
    completions,
    control,
    embeddings,
    engine_role,
    files,
    messages,
    ollama,
    programs,
    replies,
    responses,
    routes,
    schemas,
    scores,
    stored_plans,
)
from headrace.server.access import AccessMiddleware
from headrace.server.batch_runner import BatchRunner
from headrace.server.cache_forms import EVENTS_PATH
from headrace.server.cache_stream import cache_events
from headrace.server.caller import caller_of
from headrace.server.context import Context, ServerTokenizer, make_context
from headrace.server.dispatch import not_admin, pooled_endpoint
from headrace.server.engine_state import EngineStateReply, engine_state
from headrace.server.http_errors import HttpError, to_http
from headrace.server.model_pool import ModelPool
from headrace.server.openapi import OpenApiDocument
from headrace.server.page_files import page_routes
from headrace.server.route_spec import RouteSpec
from headrace.server.server_route import ServerRoute

__all__ = ["create_app", "create_app_for"]

_ROUTES = (
    RouteSpec(
        "POST",
        "/v1/chat/completions",
        chat.answer_chat,
        "Answer a conversation",
        schemas.ChatRequest,
        replies.ChatCompletion,
        replies.ChatChunk,
    ),
    RouteSpec(
        "POST",
        "/v1/completions",
        completions.answer_completion,
        "Continue a text",
        schemas.CompletionRequest,
        replies.TextCompletion,
        replies.TextCompletion,
    ),
    RouteSpec(
        "POST",
        "/v1/chat/completions/render",
        routes.render,
        "Show a conversation's prompt",
        schemas.ChatRequest,
        replies.RenderReply,
    ),
    RouteSpec("GET", "/v1/models", routes.list_models, "List the models", reply=replies.ModelList),
    RouteSpec("GET", "/v1/models/{model:path}", routes.show_model, "Describe a model", reply=replies.ModelCard),
    RouteSpec(
        "POST",
        "/tokenize",
        routes.tokenize,
        "Turn text into token ids",
        schemas.TokenizeRequest,
        replies.TokenizeReply,
    ),
    RouteSpec(
        "POST",
        "/detokenize",
        routes.detokenize,
        "Turn token ids into text",
        schemas.DetokenizeRequest,
        replies.DetokenizeReply,
    ),
    RouteSpec("GET", "/tokenizer_info", routes.tokenizer_info, "Describe the tokenizer", reply=replies.TokenizerInfo),
    RouteSpec("GET", "/health", routes.health, "Report whether the engine makes progress", reply=replies.HealthReply),
    RouteSpec("GET", "/metrics", routes.metrics, "Metrics in Prometheus's text format", media="text/plain"),
    RouteSpec("GET", "/v1/engine/state", engine_state, "Show what the engine does now", reply=EngineStateReply),
    RouteSpec(
        "GET",
        EVENTS_PATH,
        cache_events,
        "Follow the prefix cache: its contents, then its changes",
        media="text/event-stream",
        admin=True,
    ),
    RouteSpec("GET", "/version", routes.version, "Report the version", reply=replies.VersionReply),
    *engine_role.ROUTES,
    *messages.ROUTES,
    *responses.ROUTES,
    *embeddings.ROUTES,
    *scores.ROUTES,
    *files.ROUTES,
    *batches.ROUTES,
    *ollama.ROUTES,
    *programs.ROUTES,
    *stored_plans.ROUTES,
    *control.ROUTES,
)


def create_app(client: EngineClient, tokenizer: ServerTokenizer, config: Config) -> FastAPI:
    """The application for a client that has been started. Raises ConfigError."""
    return create_app_for(make_context(client, tokenizer, config))


def create_app_for(context: Context, pool: ModelPool | None = None) -> FastAPI:
    """`pool`: the models, if there are several; `context` is then the server's own state."""
    # A redirect would repeat the client's Host header, which can hold anything.
    app = FastAPI(title="Headrace", version=__version__, redirect_slashes=False, docs_url=None, redoc_url=None)
    app.state.context = context
    context.limited_paths = frozenset(row.path for row in _ROUTES if row.names_model)
    rows = [row for row in _ROUTES if context.controls or not row.control]
    for row in rows:
        endpoint = _endpoint(context, row) if pool is None else pooled_endpoint(pool, context, row)
        app.router.routes.append(ServerRoute(row.method, row.path, endpoint, row.route.__name__))
    app.router.routes.extend(page_routes())
    _handle_errors(app, context)
    if context.batches is not None:
        context.runner = BatchRunner(context.batches, app, context.keys, context.batch_window)
    app.add_middleware(AccessMiddleware, context=context)
    app.openapi = OpenApiDocument(app, rows)  # type: ignore[method-assign]
    return app


def _endpoint(context: Context, row: RouteSpec) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        caller = caller_of(request.scope)
        if row.needs_admin and not caller.admin:
            raise not_admin()
        if row.names_model and not caller.may_use(context.model):
            raise context.no_model(context.model)
        return await row.route(context, request)

    return endpoint


def _meant(app: FastAPI, request: Request) -> str:
    """The route that a client with a wrong base address means: without its /v1, with two of them, or with a slash."""
    path = request.url.path.rstrip("/")
    ours = [route for route in app.routes if isinstance(route, ServerRoute)]
    known = {route.path for route in ours if request.method in (route.methods or ())}
    for other in (path, f"/v1{path}", path.removeprefix("/v1")):
        if other in known and other != request.url.path:
            return f"; did you mean {other}?"
    return ""


def _handle_errors(app: FastAPI, context: Context) -> None:
    async def on_error(request: Request, error: Exception) -> Response:
        return context.refuse(to_http(error), request.scope)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        off = any(row.path == request.url.path for row in control.ROUTES)
        remedy = ": serve with --enable-control-routes to have it" if off else _meant(app, request)
        return await routes.no_route(context, request, error, remedy)

    async def on_disconnect(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    app.add_exception_handler(HttpError, on_error)
    app.add_exception_handler(HeadraceError, on_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(ClientDisconnect, on_disconnect)
    # The framework raises the error again after this answer, and the HTTP server logs it.
    app.add_exception_handler(Exception, on_error)
