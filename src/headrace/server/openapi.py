"""The OpenAPI document: the request and answer of each route, with errors and event streams."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from headrace.server.replies import ErrorReply

__all__ = ["OpenApiDocument", "operation"]

_REF = "#/components/schemas/{name}"
_TAKES_A_BODY = (400, 408, 413, 415)
_ALWAYS = (401, 500, 503)


def operation(path: str, request: type | None, reply: type | None, chunk: type | None, media: str) -> dict[str, Any]:
    """The OpenAPI operation of a route. `chunk`: the data of each event, if the answer can be streamed."""
    described: dict[str, Any] = {"responses": {"200": _success(reply, chunk, media)}}
    errors = [*_ALWAYS, *(_TAKES_A_BODY if request is not None else ())]
    if request is not None:
        described["requestBody"] = {"required": True, "content": _json(request)}
    if "{" in path:
        name = path.partition("{")[2].partition(":")[0].rstrip("}")
        described["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    if request is not None or "{" in path:
        errors.append(404)
    for status in sorted(errors):
        described["responses"][str(status)] = {"description": HTTPStatus(status).phrase, "content": _json(ErrorReply)}
    return described


def _success(reply: type | None, chunk: type | None, media: str) -> dict[str, Any]:
    content: dict[str, Any] = {media: {"schema": {"type": "string" if media == "text/plain" else "object"}}}
    if reply is not None:
        content = _json(reply)
    description = "Success"
    if chunk is not None:
        content["text/event-stream"] = {"schema": _ref(chunk)}
        description += "; with `stream: true` events, each with one chunk as its data, and `[DONE]` as the last"
    return {"description": description, "content": content}


def _json(body: type) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(body)}}


def _ref(body: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=body.__name__)}


class OpenApiDocument:
    """Builds the document on the first call."""

    def __init__(self, app: FastAPI, structs: Sequence[type]) -> None:
        self._app, self._structs = app, structs
        self._document: dict[str, Any] | None = None

    def __call__(self) -> dict[str, Any]:
        if self._document is None:
            self._document = self._make()
        return self._document

    def _make(self) -> dict[str, Any]:
        document = get_openapi(title=self._app.title, version=self._app.version, routes=self._app.routes)
        _, components = msgspec.json.schema_components([*self._structs, ErrorReply], ref_template=_REF)
        document.setdefault("components", {}).setdefault("schemas", {}).update(components)
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        if self._app.state.context.api_key is not None:
            document["security"] = [{"bearer": []}, {"x-api-key": []}]
            # This path needs no key (`access`).
            document["paths"]["/health"]["get"]["security"] = []
        return document
