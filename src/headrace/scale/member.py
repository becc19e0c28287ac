"""One replica over all its runs: started, watched, started again when it ends, and at last retired."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from headrace.errors import EngineDead, HeadraceError, lasts
from headrace.route.replica import Replica
from headrace.route.roster import Roster
from headrace.scale.launching import Ending, Engine, Seat
from headrace.scale.restarts import Ended, RestartPolicy, after_end

__all__ = ["KILL_AFTER", "Member"]

_log = logging.getLogger(__name__)
KILL_AFTER = 5.0
"""Seconds, in addition to the time for draining, after which an engine that does not end is killed."""
_LOOK = 0.02
"""Seconds between two looks at the requests of an engine that is to end."""
_LISTENS = 0.1
"""Looks at an engine, as a share of the time for which it may be silent."""


class Member:
    """Thread: the event loop's. Phases: `starting`, `ready` (it was, since its last start), `waiting` (for its next
    start), `draining`, `failed` (there is no further start), `ended`."""

    def __init__(
        self,
        number: int,
        seat: Callable[[], Awaitable[Seat]],
        path: Path,
        roster: Roster,
        policy: RestartPolicy,
        start_timeout: float,
        gave_up: Callable[[], None],
    ) -> None:
        """`seat` gives it its place, before its first run. `gave_up` is called if there is no further start."""
        self.number, self.phase, self.why = number, "starting", "it is being started"
        self.restarts = self.ends = 0
        self.worked = False
        """It was ready at some time."""
        self.replica: Replica | None = None
        """As the router knows it, from its address to its end."""
        self.engine: Engine | None = None
        self._find_seat, self._path, self._roster, self._policy = seat, path, roster, policy
        self._start_timeout, self._gave_up = start_timeout, gave_up
        self._seat: Seat | None = None
        self._since: float | None = None
        """When this run became ready: monotonic seconds."""
        self._settled = asyncio.Event()
        self._task = asyncio.create_task(self._keep())
        self._task.add_done_callback(self._finished)

    @property
    def leaving(self) -> bool:
        return self.phase in ("draining", "ended")

    @property
    def usable(self) -> bool:
        """It takes requests now."""
        return self.replica is not None and self.replica.usable

    def describe(self) -> dict[str, Any]:
        where = None if self.engine is None else self.engine.where
        return {
            "replica": self.number,
            "phase": self.phase,
            "restarts": self.restarts,
            "where": where,
            "why": self.why,
        }

    async def until_ready(self) -> None:
        """Raises EngineDead if its first run ends before it is ready."""
        await self._settled.wait()
        if self.phase != "ready":
            raise EngineDead(f"replica {self.number} did not start: {self.why}")

    async def retire(self, drain_timeout: float) -> None:
        """No new requests; those that it has finish, within a time; then it ends, and its place is free."""
        self.leave()
        if self.replica is not None:
            self.replica.held_back = True
        until = time.monotonic() + drain_timeout
        while self.replica is not None and self.replica.load.tickets and time.monotonic() < until:
            await asyncio.sleep(_LOOK)
        await self.end(drain_timeout)

    async def end(self, drain_timeout: float) -> None:
        """Have it end; kill it if it does not."""
        self.leave()
        if self.engine is None:
            self._task.cancel()
        else:
            await self.engine.stop()
        await asyncio.wait({self._task}, timeout=drain_timeout + KILL_AFTER)
        if self.engine is not None:
            await self.engine.kill()
            await asyncio.wait({self._task})
        if self._seat is not None:
            seat, self._seat = self._seat, None
            await seat.close()
        self.phase, self.why = "ended", ""

    def leave(self) -> None:
        """It counts no more, and does not start again."""
        if self.phase != "ended":
            self.phase, self.why = "draining", "it ends"
        self._settled.set()

    async def _keep(self) -> None:
        """Start it, and again whenever it ends."""
        while not self.leaving:
            self.phase, self.why = "starting", "it is being started"
            ended = await self._run()
            if self.leaving:
                return
            verdict = after_end(self._policy, self.ends, ended)
            self.ends = verdict.ends
            if verdict.delay is None:
                self.phase = "failed"
                self._settled.set()
                self._gave_up()
                return
            self.phase = "waiting"
            self._settled.set()
            self.restarts += 1
            _log.error("replica %d: %s; it is started again in %g s", self.number, self.why, verdict.delay)
            await asyncio.sleep(verdict.delay)

    def _finished(self, task: asyncio.Task[None]) -> None:
        """Nobody watches over it any more: by design, or by a fault of ours, which should not pass for a quiet end."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("replica %d is not watched any more", self.number, exc_info=error)
            self.phase, self.why = "failed", f"{type(error).__name__}: {error}"
            self._settled.set()
            self._gave_up()

    async def _run(self) -> Ended:
        """One run, from its start to its end. Once it has worked, no error of a start is final: files that are replaced
        just now come back."""
        self._since = None
        try:
            if self._seat is None:
                self._seat = await self._find_seat()
            self.engine = await self._seat.start(self._path)
        except (HeadraceError, OSError) as error:
            self.why = str(error)
            return Ended(0.0, False, lasts(error) and not self.worked)
        replica = self.replica = self._roster.add(self.number, self.engine.url)
        try:
            ending = await self._until_end(self.engine, replica)
        finally:
            self._roster.remove(replica)
            self.replica = self.engine = None
        self.why = ending.why
        served = 0.0 if self._since is None else (replica.silent_since or time.monotonic()) - self._since
        return Ended(served, replica.readied.is_set(), ending.final and not self.worked)

    async def _silent(self, replica: Replica, end: asyncio.Future[Ending]) -> bool:
        """Wait a little. True if the engine has not answered for too long."""
        await asyncio.wait({end}, timeout=_LISTENS * self._policy.silent)
        since = replica.silent_since
        return since is not None and time.monotonic() - since > self._policy.silent

    async def _until_end(self, engine: Engine, replica: Replica) -> Ending:
        end = asyncio.ensure_future(engine.wait())
        ready = asyncio.ensure_future(replica.readied.wait())
        try:
            await asyncio.wait({end, ready}, timeout=self._start_timeout, return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not self.leaving:
                self.phase, self.why, self.worked = "ready", "", True
                self._since = time.monotonic()
                self._settled.set()
            elif not end.done():
                await engine.kill()
                return Ending(f"it was not ready within {self._start_timeout:g} s")
            while not end.done() and not await self._silent(replica, end):
                pass
            if not end.done():
                await engine.kill()
                return Ending(f"it gave no answer for {self._policy.silent:g} s")
            return await end
        finally:
            for task in (end, ready):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
