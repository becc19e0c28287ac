"""Engines that are started and ended with the router, as it sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from headrace.errors import InvalidRequest
from headrace.route.roster import Roster

__all__ = ["EngineGroup", "UpdateRunning"]


class UpdateRunning(InvalidRequest):
    """The number of engines and their model cannot change while an update replaces them."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="update_running")


class EngineGroup(Protocol):
    """Thread: the event loop's."""

    async def start(self, roster: Roster) -> None:
        """Begin to start the engines: each joins the roster when it has an address, and leaves it when it ends."""

    @property
    def failed(self) -> asyncio.Event:
        """Set if none of the engines can be started. `raise_failure` says why."""

    def raise_failure(self) -> None:
        """Raises HeadraceError."""

    def members(self) -> Sequence[dict[str, Any]]:
        """One for each engine that there should be: `replica`, its number; `phase`, `restarts`, `where`, `why`."""

    def summary(self) -> dict[str, Any]:
        """`wanted`, `least` and `most` engines; `update`, the last rolling update."""

    def scale(self, count: int) -> None:
        """Have as many engines from now on. Raises InvalidRequest for a number outside of the bounds,
        and UpdateRunning."""

    def update(self, path: str | None) -> None:
        """Begin to replace all engines one by one, with the model in `path` if it is given. Raises UpdateRunning."""

    async def close(self) -> None:
        """Let all drain and end; kill those that don't."""
