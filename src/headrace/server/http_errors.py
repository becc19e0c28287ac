"""HTTP errors: status, a body in OpenAI's form, headers."""

from __future__ import annotations

import math

from headrace.errors import (
    EngineDead,
    InvalidRequest,
    Overloaded,
    RateLimited,
    UserError,
    shortened,
    truncate,
)
from headrace.server.replies import ErrorDetail, ErrorReply

__all__ = ["HttpError", "ShuttingDown", "error_body", "to_http"]


class HttpError(Exception):
    """An answer that is not 200."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = shortened(message)
        self.kind = kind
        self.param = None if param is None else truncate(param)
        self.code = code
        self.headers = dict(headers or {})
        if "retry-after" in self.headers:
            self.headers.setdefault("retry-after-ms", str(1000 * int(self.headers["retry-after"])))
        elif status == 500:
            # OpenAI's and Anthropic's clients try a 500 again, which would fail again.
            self.headers["x-should-retry"] = "false"


class ShuttingDown(HttpError):
    """The server drains: new requests are refused, and those that outlast the drain end with this."""

    def __init__(self) -> None:
        super().__init__(
            503,
            "the server is shutting down: send the request to another instance or try again later",
            kind="server_error",
            code="shutting_down",
            headers={"retry-after": "5", "connection": "close"},
        )


def to_http(error: Exception) -> HttpError:
    """The HTTP error for an exception. An unexpected one becomes a 500 that shows no internals."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, UserError):
        param, code = (error.param, error.code) if isinstance(error, InvalidRequest) else (None, None)
        return HttpError(400, str(error), param=param, code=code)
    if isinstance(error, Overloaded):
        wait = str(max(1, math.ceil(error.retry_after)))
        return HttpError(503, str(error), kind="server_error", code="overloaded", headers={"retry-after": wait})
    if isinstance(error, RateLimited):
        return _rate_limited(error)
    if isinstance(error, EngineDead):
        return HttpError(503, str(error), kind="server_error", code="engine_unavailable", headers={"retry-after": "5"})
    return HttpError(
        500, "internal error: the server's log has the details", kind="server_error", code="internal_error"
    )


def _rate_limited(error: RateLimited) -> HttpError:
    if math.isinf(error.retry_after):
        headers = {"x-should-retry": "false"}
    else:
        milliseconds = max(1, math.ceil(error.retry_after * 1000))
        headers = {"retry-after": str(math.ceil(milliseconds / 1000)), "retry-after-ms": str(milliseconds)}
    return HttpError(429, str(error), kind=error.kind, code="rate_limit_exceeded", headers=headers)


def error_body(error: HttpError) -> ErrorReply:
    return ErrorReply(ErrorDetail(error.message, error.kind, error.param, error.code))
