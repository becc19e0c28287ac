"""A route of the server, as a row of a table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.context import Context
from headrace.server.error_forms import Family

__all__ = ["Route", "RouteSpec"]

Route = Callable[[Context, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """The body types are for the OpenAPI document alone: the routes parse and encode bodies themselves."""

    method: str
    path: str
    route: Route
    summary: str
    request: type | None = None
    reply: type | None = None
    chunk: type | None = None
    """The data of each event or line, if the answer can be streamed."""
    listed: type | None = None
    """The answer may also be a list of these, for the fields of another API."""
    media: str = "application/json"
    request_media: str = "application/json"
    stream_media: str = "text/event-stream"
    may_lack: bool = False
    """The server may not have what the route is about: 404."""
    conflicts: bool = False
    """The state may forbid it: 409."""
    control: bool = False
    """It controls the engine: the route is there only with `--enable-control-routes`."""
    admin: bool = False
    """Of the keys in a file, only those marked admin may call it: it changes the engine, or tells about all clients."""
    family: Family = "openai"
    """Decides the form of errors."""

    @property
    def needs_admin(self) -> bool:
        return self.control or self.admin

    @property
    def names_model(self) -> bool:
        """True if the body names the model. Such requests count towards the limits of a key."""
        return "model" in getattr(self.request, "__struct_fields__", ())
