"""The FastAPI application: routes, error handlers and the OpenAPI schema."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from headrace import __version__
from headrace.client.api import EngineClient
from headrace.config import Config
from headrace.errors import HeadraceError
from headrace.server import chat, completions, replies, routes, schemas
from headrace.server.context import Context, TextTokenizer, make_context
from headrace.server.errors import HttpError, to_http
from headrace.server.gate import Gate

__all__ = ["create_app", "create_app_for"]

Route = Callable[[Context, Request], Awaitable[Response]]

_ROUTES: tuple[tuple[str, str, Route, type | None, type | None, str], ...] = (
    (
        "POST",
        "/v1/chat/completions",
        chat.answer_chat,
        schemas.ChatRequest,
        replies.ChatCompletion,
        "Answer a conversation",
    ),
    (
        "POST",
        "/v1/completions",
        completions.answer_completion,
        schemas.CompletionRequest,
        replies.TextCompletion,
        "Continue a text",
    ),
    ("GET", "/v1/models", routes.list_models, None, replies.ModelList, "List the models"),
    ("GET", "/v1/models/{model:path}", routes.show_model, None, replies.ModelCard, "Describe a model"),
    ("POST", "/tokenize", routes.tokenize, schemas.TokenizeRequest, replies.TokenizeReply, "Turn text into token ids"),
    ("POST", "/detokenize", routes.detokenize, schemas.DetokenizeRequest, None, "Turn token ids into text"),
    ("GET", "/health", routes.health, None, None, "Tell whether the engine makes progress"),
    ("GET", "/metrics", routes.metrics, None, None, "Figures in Prometheus's text form"),
    ("GET", "/version", routes.version, None, None, "Tell the version"),
)


def create_app(client: EngineClient, tokenizer: TextTokenizer, config: Config) -> FastAPI:
    """The application around a client that has been started. Raises ConfigError."""
    return create_app_for(make_context(client, tokenizer, config))


def create_app_for(context: Context) -> FastAPI:
    # A redirect would repeat the Host header that the client made up.
    app = FastAPI(title="Headrace", version=__version__, redirect_slashes=False, redoc_url=None)
    app.state.context = context
    for method, path, route, request, reply, summary in _ROUTES:
        app.add_api_route(
            path,
            _endpoint(context, route),
            methods=[method],
            summary=summary,
            name=route.__name__,
            response_class=Response,
            openapi_extra=_operation(request, reply),
        )
    _handle_errors(app, context)
    app.add_middleware(Gate, context=context)
    app.openapi = _Schema(app)  # type: ignore[method-assign]
    return app


def _endpoint(context: Context, route: Route) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await route(context, request)

    return endpoint


def _handle_errors(app: FastAPI, context: Context) -> None:
    async def foreseen(request: Request, error: Exception) -> Response:
        return context.refuse(to_http(error))

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return await routes.no_route(context, request, error)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    app.add_exception_handler(HttpError, foreseen)
    app.add_exception_handler(HeadraceError, foreseen)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(ClientDisconnect, gone)
    # The framework raises it again after this answer, and the HTTP server logs it.
    app.add_exception_handler(Exception, foreseen)


def _operation(request: type | None, reply: type | None) -> dict[str, Any]:
    """What OpenAPI says of a route's bodies; the schemas themselves come from the structs."""
    operation: dict[str, Any] = {}
    if request is not None:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{request.__name__}"}}}
        operation["requestBody"] = {"required": True, "content": content}
    if reply is not None:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{reply.__name__}"}}}
        operation["responses"] = {"200": {"description": "Success", "content": content}}
    return operation


class _Schema:
    """Makes the OpenAPI document when it is first asked for."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._document: dict[str, Any] | None = None

    def __call__(self) -> dict[str, Any]:
        if self._document is None:
            self._document = self._make()
        return self._document

    def _make(self) -> dict[str, Any]:
        document = get_openapi(title=self._app.title, version=self._app.version, routes=self._app.routes)
        structs = [struct for row in _ROUTES for struct in row[3:5] if struct is not None]
        structs += [replies.ChatChunk]
        _, components = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
        document.setdefault("components", {}).setdefault("schemas", {}).update(components)
        schemes = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        document["components"]["securitySchemes"] = schemes
        if self._app.state.context.api_key is not None:
            document["security"] = [{"bearer": []}, {"x-api-key": []}]
        return document
