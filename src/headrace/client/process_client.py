"""The client of an engine in a separate process, which it monitors and restarts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace

from headrace.client import engine_process as spawn
from headrace.client.base_client import BaseClient
from headrace.client.engine_process import EngineProcess
from headrace.client.request_outputs import TextTokenizer
from headrace.config import Config
from headrace.engine.launch import EngineProcessHandle
from headrace.engine.stats import EngineStats, EngineView
from headrace.engine.wire import Beat, Command, Event, Failed, Loading, Ready, Shutdown, from_wire
from headrace.errors import EngineDead, HeadraceError, Overloaded

__all__ = ["ProcessClient"]

_log = logging.getLogger(__name__)

_CHECK_INTERVAL = 0.25
"""Seconds between two checks for a heartbeat. Silence is the time of the checks that found none, so a pause of this
process or of the machine doesn't count as a hanging engine."""
_SILENCE = 2.0
"""Seconds without a heartbeat after which the engine counts as hanging."""
_STALL = 60.0
"""Seconds that one step may take."""
_KILL_AFTER = 15.0
"""Seconds of silence after which a hanging engine is killed and restarted."""
_EXIT_WINDOW = 300.0
_MAX_EXITS = 8
"""Exits within `_EXIT_WINDOW` seconds after which the engine is not restarted any more."""
_MAX_DELAY = 30.0


class ProcessClient(BaseClient):
    """An `EngineClient` whose engine may exit. Requests in flight then fail with EngineDead, and a new engine is
    started, with growing delays between attempts. Until it is ready, requests are refused with Overloaded and a time to
    retry."""

    def __init__(
        self,
        config: Config,
        tokenizer: TextTokenizer,
        progress: Callable[[str, float], None] | None = None,
        command: Sequence[str] = spawn.COMMAND,
        launched: EngineProcessHandle | None = None,
    ) -> None:
        """`progress(stage, done)` is called on the event loop while the model loads. `launched`: the process of the
        first engine, if it has been started already."""
        super().__init__(config, tokenizer)
        self._progress = progress
        self._command = command
        self._launched = launched
        self._process: EngineProcess | None = None
        self._state = "new"
        self._unavailable = "the engine has not been started"
        self._final_error: HeadraceError | None = None
        self._loaded: asyncio.Future[None] | None = None
        self._exits: deque[float] = deque()
        self._restarts = 0
        self._background: set[asyncio.Task[None]] = set()
        self._silence = self._stalled = 0.0

    @property
    def pid(self) -> int | None:
        """The id of the engine's process; None if there is none."""
        return None if self._process is None else self._process.pid

    @property
    def gave_up(self) -> bool:
        """True once the engine has ended so often that it is not started again."""
        return self._state == "dead"

    async def start(self) -> None:
        if self._state != "new":
            raise EngineDead("the engine was started before: make a new client")
        self._bind_loop()
        self._state = "loading"
        try:
            await self._load()
        except BaseException:
            await self.close()
            raise
        self._spawn_task(self._watch())

    async def stats(self) -> EngineStats:
        return replace(await super().stats(), restarts=self._restarts)

    async def view(self) -> EngineView:
        view = await super().view()
        return replace(view, stats=replace(view.stats, restarts=self._restarts))

    async def check_health(self) -> None:
        if self._process is not None:
            # This loop may have been busy: read the heartbeats that have arrived.
            self._process.drain()
        self._check_ready()
        if self._stalled > _STALL:
            raise EngineDead(f"the engine's step has not ended for {self._stalled:.0f} s")

    async def close(self) -> None:
        self._state, self._unavailable = "closed", "the engine was closed"
        self._end_all()
        for task in self._background:
            task.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.send(Shutdown())
            await process.close()

    def _check_ready(self) -> None:
        if self._state == "restarting":
            raise Overloaded(f"the engine is being restarted: {self._unavailable}", retry_after=self._delay() + 1)
        if self._state != "ready":
            raise EngineDead(self._unavailable)
        if self._silence > _SILENCE:
            raise EngineDead(f"the engine has not answered for {self._silence:.1f} s")

    def _send(self, command: Command) -> None:
        if self._process is not None:
            self._process.send(command)

    async def _load(self) -> None:
        """Start a process and wait until it is ready. Raises its loading error, or EngineDead if it exits."""
        self._loaded = asyncio.get_running_loop().create_future()
        self._final_error = None
        launched, self._launched = self._launched, None
        self._process = EngineProcess(self.config, self._on_event, self._on_exit, self._command, launched)
        await self._loaded

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Beat):
            self._silence, self._stalled = 0.0, event.stalled
        elif isinstance(event, Ready):
            self._engine, self._state, self._silence = event.info, "ready", 0.0
            self._stats.ask(self._send)  # So that there are stats even if the first caller asks during a long step.
            self.cache_feed.renew()
            if self._loaded is not None and not self._loaded.done():
                self._loaded.set_result(None)
        elif isinstance(event, Loading):
            if self._progress is not None:
                self._progress(event.stage, event.done)
        elif isinstance(event, Failed):
            self._final_error = from_wire(event.error)
        else:
            self._receive(event)

    def _on_exit(self, how: str) -> None:
        self._process = None
        error = self._final_error or EngineDead(f"the engine process was lost: {how}")
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(error)
        if self._state != "ready":
            return
        self._unavailable = str(error)
        self._state = "restarting"
        _log.error("%s", self._unavailable)
        self._exits.append(time.monotonic())
        self._fail_all(EngineDead(self._unavailable))
        self._spawn_task(self._restart())

    def _delay(self) -> float:
        """Seconds before the next attempt: none after the first recent exit."""
        while self._exits and self._exits[0] < time.monotonic() - _EXIT_WINDOW:
            self._exits.popleft()
        return min(_MAX_DELAY, 2.0 ** (len(self._exits) - 1) - 1)

    async def _restart(self) -> None:
        while len(self._exits) <= _MAX_EXITS:
            await asyncio.sleep(max(0.0, self._delay()))
            try:
                await self._load()
            except HeadraceError as error:
                self._unavailable = str(error)
                self._exits.append(time.monotonic())
                _log.error("the engine could not be restarted: %s", error)
                continue
            self._restarts += 1
            _log.info("the engine was restarted")
            return
        self._state = "dead"
        self._unavailable = f"the engine could not be restarted in {_MAX_EXITS} attempts: {self._unavailable}"

    async def _watch(self) -> None:
        """Check for heartbeats, and kill a process that hangs, so that it is restarted."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            self._silence += _CHECK_INTERVAL
            if self._state == "ready" and self._process is not None:
                self._process.drain()
                if self._silence > _KILL_AFTER:
                    self._final_error = EngineDead(f"the engine hung for {_KILL_AFTER:.0f} s")
                    self._process.kill()

    def _spawn_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
