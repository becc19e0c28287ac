"""What Headrace uses of Ray, in one process: actors in the test's event loop, nodes that are only counted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any

import pytest


class RayError(Exception):
    pass


class Reference:
    def __init__(self, work: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._future = asyncio.run_coroutine_threadsafe(work, loop)

    def future(self) -> Any:
        return self._future


class _Hidden:
    """A reference to an object: its value does not show."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self._value


class _Method:
    def __init__(self, actor: FakeActor, name: str) -> None:
        self._actor, self._name = actor, name

    def remote(self, *arguments: Any) -> Reference:
        self._actor.ray.asked.append(repr(arguments))
        return Reference(self._actor.call(self._name, arguments), asyncio.get_running_loop())


class FakeActor:
    def __init__(self, held: Any, options: dict[str, Any], ray: FakeRay) -> None:
        self.held, self.options, self.ray = held, options, ray
        self.dead = asyncio.Event()

    def __getattr__(self, name: str) -> _Method:
        return _Method(self, name)

    async def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if self.ray.refuse:
            raise RayError("no worker\ncould be started")
        work = asyncio.ensure_future(getattr(self.held, name)(*arguments))
        dead = asyncio.ensure_future(self.dead.wait())
        await asyncio.wait({work, dead}, return_when=asyncio.FIRST_COMPLETED)
        dead.cancel()
        if work.done():
            return work.result()
        work.cancel()
        raise RayError("The actor died unexpectedly")

    def die(self) -> None:
        """As if its process were killed: the engine's process ends with it."""
        self.dead.set()
        if self.held._child is not None:
            self.held._child._signal(9)


class FakeGroup:
    def __init__(self, bundles: list[dict[str, float]], strategy: str, ray: FakeRay) -> None:
        self.bundles, self.strategy, self._ray = bundles, strategy, ray

    def wait(self, timeout: float) -> bool:
        return self._ray.room >= sum(len(group.bundles) for group in self._ray.groups)


class FakeRay:
    """Stands for the module `ray`, connected."""

    def __init__(self, room: int = 9) -> None:
        """`room`: bundles that the cluster has."""
        self.room, self.refuse, self.shut_down = room, False, False
        self.actors: list[FakeActor] = []
        self.groups: list[FakeGroup] = []
        self.kept: list[Any] = []
        """Values of objects."""
        self.asked: list[str] = []
        """The arguments of all calls, as one may see them."""
        self.exceptions = ModuleType("ray.exceptions")
        self.exceptions.RayError = RayError  # type: ignore[attr-defined]

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"GPU": 8.0}}]

    def remote(self, kind: Callable[[], Any]) -> Any:
        ray = self

        class _Kind:
            def __init__(self, options: dict[str, Any]) -> None:
                self._options = options

            def options(self, **options: Any) -> _Kind:
                return _Kind(options)

            def remote(self) -> FakeActor:
                ray.actors.append(FakeActor(kind(), self._options, ray))
                return ray.actors[-1]

        return _Kind({})

    def put(self, value: Any) -> _Hidden:
        self.kept.append(value)
        return _Hidden(value)

    def kill(self, actor: FakeActor) -> None:
        actor.die()

    def shutdown(self) -> None:
        self.shut_down = True


def install(monkeypatch: pytest.MonkeyPatch, ray: FakeRay) -> None:
    """Let `ray.util` be this one's."""
    groups, strategies = ModuleType("ray.util.placement_group"), ModuleType("ray.util.scheduling_strategies")

    def make(bundles: list[dict[str, float]], strategy: str) -> FakeGroup:
        ray.groups.append(FakeGroup(bundles, strategy, ray))
        return ray.groups[-1]

    def strategy(group: FakeGroup, bundle: int, placement_group_capture_child_tasks: bool) -> tuple[FakeGroup, int]:
        return group, bundle

    groups.placement_group = make  # type: ignore[attr-defined]
    groups.remove_placement_group = ray.groups.remove  # type: ignore[attr-defined]
    strategies.PlacementGroupSchedulingStrategy = strategy  # type: ignore[attr-defined]
    for module in (ModuleType("ray"), ModuleType("ray.util"), groups, strategies):
        monkeypatch.setitem(sys.modules, module.__name__, module)
