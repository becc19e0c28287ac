"""Errors in the form of each family of APIs: OpenAI's, Anthropic's and Ollama's. The route decides."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from headrace.server.http_errors import HttpError, error_body
from headrace.server.replies import AnthropicError, AnthropicErrorReply, ErrorReply, OllamaErrorReply
from headrace.server.request_ids import new_request_id

__all__ = ["ERROR_REPLIES", "Family", "error_bytes", "error_response", "family_of", "status_of"]

Family = Literal["openai", "anthropic", "ollama"]
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "api_error",
    529: "overloaded_error",
}
ERROR_REPLIES: dict[Family, type] = {
    "openai": ErrorReply,
    "anthropic": AnthropicErrorReply,
    "ollama": OllamaErrorReply,
}
"""The struct of each family's errors."""


def family_of(scope: Scope) -> Family:
    path = scope["path"]
    if path.startswith("/api/"):
        return "ollama"
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return "anthropic"
    if path.startswith("/v1/models") and any(name == b"anthropic-version" for name, _ in scope["headers"]):
        return "anthropic"
    return "openai"


def status_of(error: HttpError, family: Family) -> int:
    """Anthropic has a status of its own for a server without room."""
    return 529 if family == "anthropic" and error.code == "overloaded" else error.status


def error_bytes(error: HttpError, family: Family, request_id: str | None = None) -> bytes:
    """The JSON body. `request_id` stands in Anthropic's form."""
    if family == "anthropic":
        kind = _ANTHROPIC_KINDS.get(status_of(error, family), "invalid_request_error")
        name = request_id or new_request_id("req")
        return msgspec.json.encode(AnthropicErrorReply("error", AnthropicError(kind, error.message), name))
    if family == "ollama":
        return msgspec.json.encode(OllamaErrorReply(error.message))
    return msgspec.json.encode(error_body(error))


def error_response(error: HttpError, family: Family) -> Response:
    headers = dict(error.headers)
    request_id = None
    if family == "anthropic":
        request_id = headers["request-id"] = new_request_id("req")
    body = error_bytes(error, family, request_id)
    return Response(body, status_of(error, family), headers=headers, media_type="application/json")
