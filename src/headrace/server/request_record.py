"""What the server notes about one request, for its line in the log and its trace. It holds no text of any request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

__all__ = ["RequestRecord", "record_of"]

_RECORD = "headrace.record"


@dataclass(slots=True)
class RequestRecord:
    """Times are monotonic seconds."""

    began: float
    caller: str = ""
    status: int = 0
    """Of HTTP; 0: the client left before an answer began."""
    ended: float = 0.0
    id: str = ""
    """What follows is set by requests that generate."""
    model: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0
    submitted: float | None = None
    """When the engine got it."""
    queue_seconds: float | None = None
    """From then until the first choice was scheduled."""
    first_token: float | None = None
    finish: str = ""
    """Why the choices ended, in their order and separated by commas."""
    stream: bool = False
    sampling: dict[str, Any] = field(default_factory=dict)
    """The request's parameters of sampling that a trace shows."""

    def put(self, scope: Scope) -> None:
        scope[_RECORD] = self


def record_of(scope: Scope) -> RequestRecord | None:
    """None for a request that did not pass the middleware."""
    found: RequestRecord | None = scope.get(_RECORD)
    return found
