"""The OpenAPI document: the request and answer of each route, with errors and event streams."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from headrace.server.error_forms import ERROR_REPLIES
from headrace.server.route_spec import RouteSpec

__all__ = ["OpenApiDocument", "operation"]

_REF = "#/components/schemas/{name}"
_TAKES_A_BODY = (400, 408, 413, 415)
_ALWAYS = (401, 500, 503)


def operation(row: RouteSpec) -> dict[str, Any]:
    """The OpenAPI operation of a route."""
    described: dict[str, Any] = {"responses": {"200": _success(row)}}
    errors = [*_ALWAYS, *(_TAKES_A_BODY if row.request is not None else ())]
    if row.request is not None:
        described["requestBody"] = {"required": True, "content": {row.request_media: {"schema": _ref(row.request)}}}
    elif row.method == "POST":
        errors.append(400)
    if row.names_model:
        errors.append(429)
    if row.needs_admin:
        errors.append(403)
    if row.conflicts:
        errors.append(409)
    if "{" in row.path:
        name = row.path.partition("{")[2].partition("}")[0].partition(":")[0]
        described["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    if row.request is not None or "{" in row.path or row.may_lack:
        errors.append(404)
    if row.family == "anthropic":
        errors.append(529)
    content = _json(ERROR_REPLIES[row.family])
    for status in sorted(errors):
        phrase = "Overloaded" if status == 529 else HTTPStatus(status).phrase
        described["responses"][str(status)] = {"description": phrase, "content": content}
    return described


def _success(row: RouteSpec) -> dict[str, Any]:
    content: dict[str, Any] = {row.media: {"schema": {"type": "string" if row.media == "text/plain" else "object"}}}
    if row.reply is not None:
        content = _json(row.reply)
    if row.reply is not None and row.listed is not None:
        forms = [_ref(row.reply), {"type": "array", "items": _ref(row.listed)}]
        content = {"application/json": {"schema": {"anyOf": forms}}}
    description = "Success"
    if row.chunk is not None:
        content[row.stream_media] = {"schema": _ref(row.chunk)}
        if row.stream_media == "text/event-stream":
            content[row.stream_media] = {"schema": _event(row.chunk)}
            last = ", and `[DONE]` as the last" if row.family == "openai" else ""
            description += f"; with `stream: true` events, each with one chunk as its data{last}"
        else:
            description += "; unless `stream` is false, lines of JSON"
    return {"description": description, "content": content}


def _event(data: type) -> dict[str, Any]:
    """One event of a stream, whose `data` is JSON (or `[DONE]`)."""
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": _ref(data)}
    return {"type": "object", "properties": {"event": {"type": "string"}, "data": text}, "required": ["data"]}


def _json(body: type) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(body)}}


def _ref(body: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=body.__name__)}


def _described(row: RouteSpec) -> APIRoute:
    """The route as FastAPI's document describes it. It answers nothing."""

    async def endpoint(request: Request) -> Response:
        raise AssertionError("a route of the document alone")

    return APIRoute(
        row.path,
        endpoint,
        methods=[row.method],
        summary=row.summary,
        name=row.route.__name__,
        response_class=Response,
        openapi_extra=operation(row),
    )


class OpenApiDocument:
    """Builds the document of the rows' routes on the first call."""

    def __init__(self, app: FastAPI, rows: Sequence[RouteSpec]) -> None:
        self._app, self._rows = app, rows
        self._document: dict[str, Any] | None = None

    def __call__(self) -> dict[str, Any]:
        if self._document is None:
            self._document = self._make()
        return self._document

    def _make(self) -> dict[str, Any]:
        routes = [_described(row) for row in self._rows]
        document = get_openapi(title=self._app.title, version=self._app.version, routes=routes)
        if prefix := self._app.state.context.root_path:
            document["servers"] = [{"url": prefix}]
        named = [one for row in self._rows for one in (row.request, row.reply, row.chunk, row.listed)]
        structs = [one for one in named if one is not None]
        _, components = msgspec.json.schema_components([*structs, *ERROR_REPLIES.values()], ref_template=_REF)
        document.setdefault("components", {}).setdefault("schemas", {}).update(components)
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        if not self._app.state.context.keys.open:
            document["security"] = [{"bearer": []}, {"x-api-key": []}]
            # This path needs no key (`access`).
            document["paths"]["/health"]["get"]["security"] = []
        return document
