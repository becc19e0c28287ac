"""What starts engines: the protocol of launchers. Local processes and Ray are two of them, tests have a third."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

__all__ = ["Ending", "Engine", "Launcher", "Seat"]


class Ending(NamedTuple):
    """Of an engine."""

    why: str
    """For people: an exit code, or the error that it reported."""
    final: bool = False
    """Another start would end in the same way."""


class Engine(Protocol):
    """One run of a server process. Thread: the event loop's."""

    @property
    def url(self) -> str: ...

    @property
    def where(self) -> str:
        """For people: the process, and the machine if it is another."""

    async def wait(self) -> Ending:
        """Returns when it has ended. May be called by several at once."""

    async def stop(self) -> None:
        """Have it finish its requests and end."""

    async def kill(self) -> None:
        """End it now. Harmless after its end."""


class Seat(Protocol):
    """Room for one engine, over all its runs: devices, and a port of its own or a bundle of a placement group."""

    async def start(self, path: Path) -> Engine:
        """Start a run; it is not ready yet. Raises HeadraceError if it cannot even be begun."""

    async def close(self) -> None:
        """Give the room back. The engine has ended."""


class Launcher(Protocol):
    async def seat(self) -> Seat:
        """Room for one more engine. Raises PlatformError that says what is lacking."""

    async def close(self) -> None:
        """All engines have ended."""
