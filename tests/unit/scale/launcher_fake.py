"""A launcher whose engines are stubs in the test's event loop: they end, fail and hang as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from stub_engine import Stub

from headrace.errors import PlatformError
from headrace.scale.launching import Ending


class FakeEngine:
    def __init__(self, number: int, path: Path, stub: Stub) -> None:
        self.number, self.path, self.stub = number, path, stub
        self.stopped = False
        self.last: asyncio.Event | None = None
        """Killing it takes until this is set."""
        self._end: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()

    @property
    def url(self) -> str:
        return self.stub.url

    @property
    def where(self) -> str:
        return f"engine {self.number}"

    def crash(self, why: str = "it was killed", final: bool = False) -> None:
        if not self._end.done():
            self.stub.stop()
            self._end.set_result(Ending(why, final))

    async def wait(self) -> Ending:
        return await asyncio.shield(self._end)

    async def stop(self) -> None:
        self.stopped = True
        if self.stub.mode != "deaf":
            self.crash("it was asked to")

    async def kill(self) -> None:
        if self.last is not None:
            await self.last.wait()
        self.crash("it was killed")


class FakeSeat:
    def __init__(self, launcher: FakeLauncher) -> None:
        self._launcher = launcher

    async def start(self, path: Path) -> FakeEngine:
        launcher = self._launcher
        if launcher.refuse is not None:
            raise launcher.refuse
        stub = launcher.make(len(launcher.engines), path)
        await stub.start()
        engine = FakeEngine(len(launcher.engines), path, stub)
        launcher.engines.append(engine)
        if path.name == "broken":
            engine.crash("the model cannot be read", final=True)
        elif path.name == "weak":
            engine.crash("it fell over")
        return engine

    async def close(self) -> None:
        self._launcher.seats -= 1


class FakeLauncher:
    def __init__(self, make: Callable[[int, Path], Stub] | None = None, most: int = 100) -> None:
        """`make`: the stub for a run, by its number and path."""
        self.make = make or (lambda number, path: Stub())
        self.most, self.seats, self.closed = most, 0, False
        self.refuse: Exception | None = None
        """What a start raises."""
        self.engines: list[FakeEngine] = []
        """All runs, in the order of their starts."""

    async def seat(self) -> FakeSeat:
        if self.seats == self.most:
            raise PlatformError("all places are taken")
        self.seats += 1
        return FakeSeat(self)

    async def close(self) -> None:
        self.closed = True
