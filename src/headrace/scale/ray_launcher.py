"""Engines on the nodes of a Ray cluster: an actor holds each, and a placement group gives it its place.

Ray finds the nodes, starts the actors and says when one has ended. Requests and tokens go straight from the router to
the engines over HTTP. A bundle has room for an engine with all its ranks, so that they are on one node; the bundles of
the engines that there always are belong to one group that spreads them over the nodes, each further engine has a group
of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.config import Config
from headrace.deadlines import in_time
from headrace.errors import ConfigError, PlatformError, truncate
from headrace.scale.launching import Ending
from headrace.scale.ray_demand import ray_demand
from headrace.scale.ray_host import RayHost
from headrace.scale.replica_child import COMMAND

__all__ = ["RayLauncher"]


class _Group:
    """A placement group of one or more bundles."""

    def __init__(self, handle: Any, bundles: int) -> None:
        self.handle, self.free, self.bundles = handle, set(range(bundles)), bundles


class RayLauncher:
    """Thread: the event loop's. Ray's own calls that wait are made in threads."""

    def __init__(self, ray: Any, config: Config, path: Path, command: Sequence[str] = COMMAND) -> None:
        """`ray` is connected. `path`: where this machine has the files of the configuration's model. Raises ConfigError
        if no node could ever have an engine."""
        self.ray, self._path, self._command = ray, path, command
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self._demand = ray_demand(config, nodes)
        device = config.device.model_copy(update={"threads": self._demand.threads})
        self.config = config.model_copy(update={"device": device})
        self._groups: list[_Group] = []
        self._host = ray.remote(RayHost)

    async def seat(self) -> RaySeat:
        group = next((one for one in self._groups if one.free), None)
        if group is None:
            # The first group has the engines that there always are.
            group = self._reserve(1 if self._groups else self.config.scale.least)
            self._groups.append(group)
        bundle = min(group.free)
        group.free.remove(bundle)
        seat = RaySeat(self, group, bundle)
        try:
            await self._until_placed(group)
        except BaseException:
            await seat.close()
            raise
        return seat

    def _reserve(self, bundles: int) -> _Group:
        from ray.util.placement_group import placement_group

        return _Group(placement_group([self._demand.bundle] * bundles, strategy="SPREAD"), bundles)

    async def _until_placed(self, group: _Group) -> None:
        timeout = self.config.scale.start_timeout
        if not await asyncio.to_thread(group.handle.wait, timeout):
            raise PlatformError(
                f"the Ray cluster had no room for {group.bundles} bundles of {self._demand.bundle} within {timeout:g} s"
            )

    def actor(self, group: _Group, bundle: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(group.handle, bundle, placement_group_capture_child_tasks=True)
        return self._host.options(
            num_cpus=self._demand.bundle.get("CPU", 0.0),
            num_gpus=self._demand.bundle.get("GPU", 0.0),
            max_restarts=0,
            max_concurrency=16,
            scheduling_strategy=strategy,
        ).remote()

    async def begin(self, actor: Any, path: Path) -> RayEngine:
        """Start the engine of an actor. Raises PlatformError, and ConfigError if it could never work."""
        ray, scale = self.ray, self.config.scale
        server = self.config.server
        open_to_all = self.config.model_copy(update={"server": server.model_copy(update={"api_key": None})})
        settings = open_to_all.model_dump(mode="json")
        # An object in a list: Ray keeps its value out of the call, which its state and its dashboard may show.
        key = ray.put(server.api_key)
        # The name stands for the files that it had at first, and for no others.
        name = self.config.model.model if path == self._path else ""
        # A cluster of this machine alone is reached by nobody else.
        address = "127.0.0.1" if scale.ray_address == "local" else None
        started = actor.start.remote(__version__, str(path), name, settings, [key], address, list(self._command))
        try:
            facts = await in_time(scale.start_timeout, _result(started))
        except ray.exceptions.RayError as error:
            raise PlatformError(f"Ray could not start an engine's actor: {_one_line(error)}") from None
        except asyncio.TimeoutError:
            raise PlatformError(f"Ray started no actor for an engine within {scale.start_timeout:g} s") from None
        if "error" in facts:
            raise (ConfigError if facts["final"] else PlatformError)(facts["error"])
        return RayEngine(ray, actor, facts)

    def leave(self, group: _Group, bundle: int) -> None:
        group.free.add(bundle)
        if len(group.free) == group.bundles:
            from ray.util.placement_group import remove_placement_group

            self._groups.remove(group)
            remove_placement_group(group.handle)

    async def close(self) -> None:
        await asyncio.to_thread(self.ray.shutdown)


class RaySeat:
    """A bundle. Each run has an actor of its own there."""

    def __init__(self, launcher: RayLauncher, group: _Group, bundle: int) -> None:
        self._launcher, self._group, self._bundle = launcher, group, bundle

    async def start(self, path: Path) -> RayEngine:
        actor = self._launcher.actor(self._group, self._bundle)
        try:
            return await self._launcher.begin(actor, path)
        except BaseException:
            with contextlib.suppress(Exception):
                self._launcher.ray.kill(actor)
            raise

    async def close(self) -> None:
        self._launcher.leave(self._group, self._bundle)


class RayEngine:
    def __init__(self, ray: Any, actor: Any, facts: dict[str, Any]) -> None:
        self._ray, self._actor, self._facts = ray, actor, facts
        self._end: asyncio.Task[Ending] | None = None

    @property
    def url(self) -> str:
        return str(self._facts["url"])

    @property
    def where(self) -> str:
        return f"process {self._facts['pid']} of actor {self._facts['host']} on {self._facts['node']}"

    async def wait(self) -> Ending:
        if self._end is None:
            self._end = asyncio.create_task(self._ended())
        return await asyncio.shield(self._end)

    async def _ended(self) -> Ending:
        try:
            why, final = await _result(self._actor.wait.remote())
            ending = Ending(why, final)
        except self._ray.exceptions.RayError as error:
            ending = Ending(f"its actor has ended: {_one_line(error)}")
        self._ray.kill(self._actor)
        return ending

    async def stop(self) -> None:
        self._actor.stop.remote()

    async def kill(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError, asyncio.TimeoutError):
            await in_time(5, _result(self._actor.kill.remote()))
        self._ray.kill(self._actor)
        await self.wait()


def _one_line(error: Exception) -> str:
    return truncate(" ".join(str(error).split()))


async def _result(reference: Any) -> Any:
    return await asyncio.wrap_future(reference.future())
