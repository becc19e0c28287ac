"""A route as the application finds it: by its path and its one method."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

__all__ = ["ServerRoute"]


class ServerRoute(Route):
    """Calls its endpoint with the request alone. Routes of FastAPI look for parameters and dependencies in each
    endpoint's signature, which ours do not have: that took most of the time in which an application is made."""

    def __init__(
        self, method: str, path: str, endpoint: Callable[[Request], Awaitable[Response]], name: str | None = None
    ) -> None:
        super().__init__(path, endpoint, methods=[method], name=name)
        # Without HEAD, which comes with GET.
        self.methods = {method}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As every route, and leaves itself in the scope: traces name the path."""
        match, found = super().matches(scope)
        return match, {**found, "route": self} if match is not Match.NONE else found
