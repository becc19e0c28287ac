"""All replicas of one model: as many as are wanted, replaced one by one in an update, followed by the load."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.config import ScaleConfig
from headrace.errors import EngineDead, HeadraceError, InvalidRequest, PlatformError
from headrace.route.engine_group import UpdateRunning
from headrace.route.roster import Roster
from headrace.scale.autoscaling import Memory, Targets, decide
from headrace.scale.launching import Launcher, Seat
from headrace.scale.member import Member
from headrace.scale.observing import observe
from headrace.scale.restarts import RestartPolicy
from headrace.wording import counted

__all__ = ["ReplicaSet"]

_log = logging.getLogger(__name__)
_EVERY = 1.0
"""Seconds between two looks at the load."""


class ReplicaSet:
    """An `EngineGroup`. Thread: the event loop's, from `start` on."""

    def __init__(
        self,
        launcher: Launcher,
        path: Path,
        settings: ScaleConfig,
        drain_timeout: float,
        policy: RestartPolicy | None = None,
        targets: Targets | None = None,
    ) -> None:
        """`policy` and `targets` go before those of the settings, for tests."""
        self._launcher, self._path, self._settings, self._drain_timeout = launcher, path, settings, drain_timeout
        self._policy = policy or RestartPolicy(settings.max_restarts)
        self._targets = targets or Targets(settings.least, settings.most, settings.target_queue, settings.target_ttft)
        self._members: list[Member] = []
        self._roster: Roster | None = None
        self._failed = asyncio.Event()
        self._updating: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._progress: dict[str, Any] | None = None

    @property
    def failed(self) -> asyncio.Event:
        return self._failed

    def raise_failure(self) -> None:
        why = "; ".join(dict.fromkeys(one.why for one in self._members if one.phase == "failed"))
        raise EngineDead(f"no replica can be started: {why}")

    async def start(self, roster: Roster) -> None:
        self._roster = roster
        for _ in range(self._settings.first):
            self._add()
        if self._settings.most > self._settings.least:
            self._following = asyncio.create_task(self._follow_load())
            self._following.add_done_callback(_tell_fault)

    def members(self) -> Sequence[dict[str, Any]]:
        return [one.describe() for one in self._members]

    def summary(self) -> dict[str, Any]:
        return {
            "wanted": len(self._staying()),
            "least": self._settings.least,
            "most": self._settings.most,
            "update": self._progress,
        }

    def scale(self, count: int) -> None:
        least, most = self._settings.least, self._settings.most
        if not least <= count <= most:
            raise InvalidRequest(
                f"replicas must be from {least} to {most}, as the server was started, and not {count}", param="replicas"
            )
        self._refuse_during_update()
        staying = self._staying()
        for _ in range(count - len(staying)):
            self._add()
        for one in sorted(staying, key=_worth)[: max(0, len(staying) - count)]:
            self._leave(one)

    def update(self, path: str | None) -> None:
        self._refuse_during_update()
        old = self._staying()
        self._progress = {"state": "running", "done": 0, "of": len(old), "error": None}
        self._updating = asyncio.create_task(
            self._replace_all(self._path if path is None else Path(path), old, self._progress)
        )
        self._updating.add_done_callback(_tell_fault)

    async def close(self) -> None:
        tasks = [task for task in (self._following, self._updating, *self._leaving) if task is not None]
        for task in tasks:
            task.cancel()
        # What one of them died of was told then, and must not keep the engines from their end.
        await asyncio.gather(*tasks, return_exceptions=True)
        members = list(self._members)
        ends = await asyncio.gather(*(one.end(self._drain_timeout) for one in members), return_exceptions=True)
        for one, error in zip(members, ends, strict=True):
            if error is not None:
                _log.error("replica %d could not be ended", one.number, exc_info=error)
        await self._launcher.close()

    def _staying(self) -> list[Member]:
        return [one for one in self._members if not one.leaving]

    def _add(self) -> Member:
        assert self._roster is not None, "it was started"
        taken = {one.number for one in self._members}
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        timeout = self._settings.start_timeout
        member = Member(number, self._room, self._path, self._roster, self._policy, timeout, self._look_for_failure)
        self._members.append(member)
        return member

    async def _room(self) -> Seat:
        """Room for one more, which those that are leaving may have until they have ended. Raises PlatformError."""
        while True:
            try:
                return await self._launcher.seat()
            except PlatformError:
                if not self._leaving:
                    raise
            await asyncio.wait(set(self._leaving), return_when=asyncio.FIRST_COMPLETED)

    def _leave(self, member: Member) -> None:
        member.leave()
        task = asyncio.create_task(self._retire(member))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        task.add_done_callback(_tell_fault)

    async def _retire(self, member: Member) -> None:
        await member.retire(self._drain_timeout)
        self._members.remove(member)

    def _look_for_failure(self) -> None:
        """One was given up. The whole set has failed if no other is left."""
        staying = self._staying()
        failed = [one for one in staying if one.phase == "failed"]
        if len(failed) == len(staying):
            self._failed.set()
        # As long as none has worked, the reason is that of the whole set, most likely, and is said once.
        level = logging.ERROR if any(one.worked for one in self._members) else logging.INFO
        for one in failed[-1:]:
            _log.log(level, "replica %d is not started any more: %s", one.number, one.why)

    def _is_updating(self) -> bool:
        return self._updating is not None and not self._updating.done()

    def _refuse_during_update(self) -> None:
        if self._is_updating():
            raise UpdateRunning("an update of all replicas runs: wait until it has ended")

    async def _replace_all(self, path: Path, old: Sequence[Member], progress: dict[str, Any]) -> None:
        """Replace all replicas. If a new one cannot be started, the rest stays; and if the path is another one, those
        that have it already are replaced, too, so that one name stands for one model."""
        before, self._path = self._path, path
        made: list[Member] = []
        try:
            await self._replace(old, made)
        except Exception as error:
            self._path = before
            why = str(error) or type(error).__name__
            # An error that is none of ours is a fault, and its place is told, too.
            fault = None if isinstance(error, HeadraceError) else error
            _log.error("the update has ended with %d of %d replicas: %s", len(made), len(old), error, exc_info=fault)
            progress.update(done=len(made), error=why)
            if made and path != before:
                progress["state"] = "taking back"
                progress["error"] = f"{why}; {await self._take_back(made, before)}"
            progress["state"] = "failed"
            return
        progress["state"] = "done"
        _log.info("all %d replicas were replaced", len(old))

    async def _replace(self, old: Sequence[Member], made: list[Member]) -> None:
        """Start a new replica, then end an old one, one after another. `made` gets the new ones. Raises what a start
        raises; that one is ended."""
        for one in old:
            new = self._add()
            try:
                await new.until_ready()
            except Exception:
                await self._retire(new)
                raise
            made.append(new)
            await self._retire(one)
            if self._progress is not None and self._progress["state"] == "running":
                self._progress["done"] = len(made)

    async def _take_back(self, made: Sequence[Member], before: Path) -> str:
        """Replace those that an update has replaced by such with the path before it. Returns how that went."""
        again: list[Member] = []
        try:
            await self._replace(made, again)
        except Exception as error:
            left = len(made) - len(again)
            _log.error("the new path stays for %s: %s", counted(left, "replica"), error)
            stays = f"the new path stays for {counted(left, 'replica')}"
            return f"{stays}, because one with {before} did not start either: {error}"
        _log.warning("%s with the new path replaced by such with %s again", counted(len(made), "replica"), before)
        return f"the {len(made)} that were replaced have {before} again"

    async def _follow_load(self) -> None:
        assert self._roster is not None, "it was started"
        memory = Memory()
        while True:
            await asyncio.sleep(_EVERY)
            if self._is_updating():
                memory = Memory()
                continue
            staying = self._staying()
            failed = sum(one.phase == "failed" for one in staying)
            replicas = [one.replica for one in staying if one.replica is not None]
            ready = sum(one.usable for one in staying)
            coming = sum(one.phase in ("starting", "waiting") and not one.usable for one in staying)
            seen = observe(replicas, coming, time.monotonic(), len(staying) - failed - ready - coming)
            engines, why, memory = decide(self._targets, seen, memory)
            wanted = min(engines + failed, self._settings.most)
            if wanted != len(staying) and why:
                _log.warning("%d replicas in place of %d: %s", wanted, len(staying), why)
                self.scale(wanted)


def _tell_fault(task: asyncio.Task[None]) -> None:
    """A task has ended, by design or by a fault of ours, which should not pass for a quiet end."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log.error("a change of the number of replicas has ended", exc_info=error)


def _worth(member: Member) -> tuple[bool, int, int]:
    """The first are the first to go: those that do not work, then those with the least to do, the newest first."""
    replica = member.replica
    return (member.usable, 0 if replica is None else replica.load.tickets, -member.number)
