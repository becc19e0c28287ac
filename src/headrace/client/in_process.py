"""The engine in this process, its loop on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading

from headrace.client.base import BaseClient
from headrace.client.output import TextTokenizer
from headrace.config import Config
from headrace.engine.service import Build, BuiltEngine, Progress, Pulse, serve
from headrace.engine.wire import Command, Event, Failed, Loading, Ready, Shutdown, from_wire, to_wire
from headrace.errors import EngineDead, HeadraceError

__all__ = ["InProcessClient"]

_STALL = 60.0
"""Seconds that one step may take before the engine counts as hanging."""
_JOIN = 10.0


class InProcessClient(BaseClient):
    """An `EngineClient` without a process. A lost device cannot be restarted here: make a new client."""

    def __init__(
        self,
        config: Config,
        tokenizer: TextTokenizer,
        progress: Progress | None = None,
        build: Build | None = None,
    ) -> None:
        """`progress(stage, done)` is called on the event loop while the model loads."""
        super().__init__(config, tokenizer)
        self._progress = progress
        self._build = build
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._pulse = Pulse()
        self._thread: threading.Thread | None = None
        self._why: str | None = "the engine has not been started"

    async def start(self) -> None:
        if self._thread is not None:
            raise EngineDead("the engine was started before: make a new client")
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(loop, started), name="headrace-engine", daemon=True)
        self._thread.start()
        await started

    async def check_health(self) -> None:
        self._check_ready()
        stalled = self._pulse.stalled()
        if stalled > _STALL:
            raise EngineDead(f"the engine's step has not ended for {stalled:.0f} s")

    async def close(self) -> None:
        self._why = "the engine was closed"
        self._end_all()
        if self._thread is not None:
            self._commands.put(Shutdown())
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, _JOIN)

    def _check_ready(self) -> None:
        if self._why is not None:
            raise EngineDead(self._why)

    def _send(self, command: Command) -> None:
        self._commands.put(command)

    def _run(self, loop: asyncio.AbstractEventLoop, started: asyncio.Future[None]) -> None:
        """The engine's thread."""

        def send(event: Event) -> None:
            # A loop that was closed without closing the client leaves nobody to tell.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_event, event, started)

        engine: BuiltEngine | None = None
        try:
            engine = (self._build or _default_build())(self.config, lambda stage, done: send(Loading(stage, done)))
            send(Ready(engine.info))
            serve(engine.core, self._take_commands, send, self._pulse)
        except Exception as error:
            send(Failed(to_wire(error)))
        finally:
            if engine is not None:
                engine.close()

    def _on_event(self, event: Event, started: asyncio.Future[None]) -> None:
        if isinstance(event, Ready):
            self._engine, self._why = event.info, None
            if not started.done():
                started.set_result(None)
        elif isinstance(event, Failed):
            self._failed(from_wire(event.error), started)
        elif isinstance(event, Loading):
            if self._progress is not None:
                self._progress(event.stage, event.done)
        else:
            self._receive(event)

    def _failed(self, error: HeadraceError, started: asyncio.Future[None]) -> None:
        if not started.done():
            started.set_exception(error)
        if self._why is None:
            self._why = f"the engine ended: {error}"
        self._lose(EngineDead(self._why))

    def _take_commands(self, wait: float) -> list[Command]:
        commands: list[Command] = []
        with contextlib.suppress(queue.Empty):
            if wait > 0:
                commands.append(self._commands.get(timeout=wait))
            while True:
                commands.append(self._commands.get_nowait())
        return commands


def _default_build() -> Build:
    # Here, so that the loop's thread does not wait for the heavy imports.
    from headrace.engine.startup import build_engine

    return build_engine
