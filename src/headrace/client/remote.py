"""The engine in a process of its own, watched and restarted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace

from headrace.client import engine_process as spawn
from headrace.client.base import BaseClient
from headrace.client.engine_process import EngineProcess
from headrace.client.output import TextTokenizer
from headrace.config import Config
from headrace.engine.launch import Launched
from headrace.engine.stats import EngineStats
from headrace.engine.wire import Beat, Command, Event, Failed, Loading, Ready, Shutdown, from_wire
from headrace.errors import EngineDead, HeadraceError, Overloaded

__all__ = ["ProcessClient"]

_log = logging.getLogger(__name__)

_LOOK = 0.25
"""Seconds between two looks at the engine's silence. Silence is the looks that found no beat: where this process or the whole
machine stood still, nobody listened, and nobody hangs."""
_SILENCE = 2.0
"""Seconds without a beat after which the engine counts as hanging."""
_STALL = 60.0
"""Seconds that one step may take."""
_KILL_AFTER = 15.0
"""Seconds of silence after which a hanging engine is ended and restarted."""
_MEMORY = 300.0
_MOST_DEATHS = 8
"""Deaths within so many seconds after which it stays down."""
_LONGEST_DELAY = 30.0


class ProcessClient(BaseClient):
    """An `EngineClient` whose engine may die: what was in flight fails with EngineDead, and a new engine is started with
    growing delays between attempts. Until it is ready, requests are refused with Overloaded, which says when to come back."""

    def __init__(
        self,
        config: Config,
        tokenizer: TextTokenizer,
        progress: Callable[[str, float], None] | None = None,
        command: Sequence[str] = spawn.COMMAND,
        launched: Launched | None = None,
    ) -> None:
        """`progress(stage, done)` is called on the event loop while the model loads. `launched`: the process of the first engine,
        where it has been started already."""
        super().__init__(config, tokenizer)
        self._progress = progress
        self._command = command
        self._launched = launched
        self._process: EngineProcess | None = None
        self._state = "new"
        self._why = "the engine has not been started"
        self._last_words: HeadraceError | None = None
        self._loaded: asyncio.Future[None] | None = None
        self._deaths: deque[float] = deque()
        self._restarts = 0
        self._background: set[asyncio.Task[None]] = set()
        self._silence = self._stalled = 0.0

    @property
    def pid(self) -> int | None:
        """Of the engine's process, None where there is none."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        if self._state != "new":
            raise EngineDead("the engine was started before: make a new client")
        self._settle()
        self._state = "loading"
        try:
            await self._load()
        except BaseException:
            await self.close()
            raise
        self._spawn_task(self._watch())

    async def stats(self) -> EngineStats:
        return replace(await super().stats(), restarts=self._restarts)

    async def check_health(self) -> None:
        if self._process is not None:
            # This loop may have been busy itself; what has arrived counts.
            self._process.drain()
        self._check_ready()
        if self._stalled > _STALL:
            raise EngineDead(f"the engine's step has not ended for {self._stalled:.0f} s")

    async def close(self) -> None:
        self._state, self._why = "closed", "the engine was closed"
        self._end_all()
        for task in self._background:
            task.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.send(Shutdown())
            await process.close()

    def _check_ready(self) -> None:
        if self._state == "restarting":
            raise Overloaded(f"the engine is being restarted: {self._why}", retry_after=self._delay() + 1)
        if self._state != "ready":
            raise EngineDead(self._why)
        if self._silence > _SILENCE:
            raise EngineDead(f"the engine has not answered for {self._silence:.1f} s")

    def _send(self, command: Command) -> None:
        if self._process is not None:
            self._process.send(command)

    async def _load(self) -> None:
        """Start a process and wait until it is ready. Raises its loading error, EngineDead where it dies."""
        self._loaded = asyncio.get_running_loop().create_future()
        self._last_words = None
        launched, self._launched = self._launched, None
        self._process = EngineProcess(self.config, self._on_event, self._on_death, self._command, launched)
        await self._loaded

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Beat):
            self._silence, self._stalled = 0.0, event.stalled
        elif isinstance(event, Ready):
            self._engine, self._state, self._silence = event.info, "ready", 0.0
            self._ask()  # So that there are figures even where the first look falls into a long step.
            if self._loaded is not None and not self._loaded.done():
                self._loaded.set_result(None)
        elif isinstance(event, Loading):
            if self._progress is not None:
                self._progress(event.stage, event.done)
        elif isinstance(event, Failed):
            self._last_words = from_wire(event.error)
        else:
            self._receive(event)

    def _on_death(self, how: str) -> None:
        self._process = None
        error = self._last_words or EngineDead(f"the engine process was lost: {how}")
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(error)
        if self._state != "ready":
            return
        self._why = str(error)
        self._state = "restarting"
        _log.error("%s", self._why)
        self._deaths.append(time.monotonic())
        self._lose(EngineDead(self._why))
        self._spawn_task(self._restart())

    def _delay(self) -> float:
        """Seconds before the next attempt: none after the first death of late."""
        while self._deaths and self._deaths[0] < time.monotonic() - _MEMORY:
            self._deaths.popleft()
        return min(_LONGEST_DELAY, 2.0 ** (len(self._deaths) - 1) - 1)

    async def _restart(self) -> None:
        while len(self._deaths) <= _MOST_DEATHS:
            await asyncio.sleep(max(0.0, self._delay()))
            try:
                await self._load()
            except HeadraceError as error:
                self._why = str(error)
                self._deaths.append(time.monotonic())
                _log.error("the engine could not be restarted: %s", error)
                continue
            self._restarts += 1
            _log.info("the engine was restarted")
            return
        self._state = "dead"
        self._why = f"the engine was given up after {_MOST_DEATHS} attempts: {self._why}"

    async def _watch(self) -> None:
        """Listens, and ends a process that hangs, so that it is restarted."""
        while True:
            await asyncio.sleep(_LOOK)
            self._silence += _LOOK
            if self._state == "ready" and self._process is not None:
                self._process.drain()
                if self._silence > _KILL_AFTER:
                    self._last_words = EngineDead(f"the engine hung for {_KILL_AFTER:.0f} s")
                    self._process.kill()

    def _spawn_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
