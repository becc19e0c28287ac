"""Engines as processes of this machine, each with a device of its own or a part of the cores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.config import Config
from headrace.errors import PlatformError
from headrace.scale.replica_child import COMMAND, ReplicaChild, Reserved, start_child

__all__ = ["LocalLauncher"]


class LocalLauncher:
    """Thread: the event loop's."""

    def __init__(self, places: Sequence[Config], shared: bool, command: Sequence[str] = COMMAND) -> None:
        """One configuration for each place. `shared`: places may have several engines, since they are parts of the
        host; otherwise each is a device."""
        self._places, self._shared, self._command = list(places), shared, command
        self._taken: list[int] = []

    async def seat(self) -> LocalSeat:
        free = [number for number in range(len(self._places)) if number not in self._taken]
        if not free and not self._shared:
            raise PlatformError(
                f"all {len(self._places)} places for engines are taken: an engine needs a device of its own"
            )
        number = free[0] if free else min(range(len(self._places)), key=self._taken.count)
        seat = LocalSeat(self, number, self._places[number], self._command)
        self._taken.append(number)
        return seat

    def leave(self, number: int) -> None:
        self._taken.remove(number)

    async def close(self) -> None:
        pass


class LocalSeat:
    def __init__(self, launcher: LocalLauncher, number: int, config: Config, command: Sequence[str]) -> None:
        self._launcher, self._number, self._command = launcher, number, command
        self._reserved = Reserved(config)

    async def start(self, path: Path) -> ReplicaChild:
        return await start_child(self._reserved, path, "", self._command)

    async def close(self) -> None:
        self._reserved.close()
        self._launcher.leave(self._number)
