"""The engine in this process, its loop on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import weakref
from concurrent.futures import Future

from headrace.client.base import BaseClient
from headrace.client.output import TextTokenizer
from headrace.config import Config
from headrace.engine.service import Build, BuiltEngine, Progress, Pulse, serve
from headrace.engine.wire import Command, Event, Failed, Loading, Ready, Shutdown, from_wire, to_wire
from headrace.errors import EngineDead, HeadraceError

__all__ = ["InProcessClient"]

_STALL = 60.0
"""Seconds that one step may take before the engine counts as hanging."""
_JOIN, _JOIN_LOADING = 10.0, 1.0
"""Seconds for the engine's thread to end."""


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
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()  # From here on nobody who waits for it can cancel it.
        self._why: str | None = "the engine has not been started"
        self._closed = False

    async def start(self) -> None:
        if self._thread is not None:
            raise EngineDead("the engine was started before: make a new client")
        self._settle()
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(loop, started), name="headrace-engine", daemon=True)
        self._thread.start()
        await started
        # For the interpreter's end. Made when the device is open: the newest comes first, and a device's threads are stopped likewise.
        weakref.finalize(self, _stop, self._commands, self._thread, self._process)

    async def check_health(self) -> None:
        self._check_ready()
        stalled = self._pulse.stalled()
        if stalled > _STALL:
            raise EngineDead(f"the engine's step has not ended for {stalled:.0f} s")

    async def close(self) -> None:
        """In a forked process, which has no part of the engine, this does nothing."""
        if os.getpid() != self._process:
            return
        self._why, self._closed = "the engine was closed", True
        if self._home in (None, asyncio.get_running_loop()):
            self._end_all()
        else:
            # Who waits in another loop is told there; where it is closed, nobody waits any more.
            with contextlib.suppress(RuntimeError):
                self._home.call_soon_threadsafe(self._end_all)
        if self._thread is not None:
            self._commands.put(Shutdown())
            # Without an executor: there is none any more when the interpreter ends.
            with contextlib.suppress(asyncio.TimeoutError):
                # One that still loads may be in the middle of something long; it looks up at its next progress.
                await asyncio.wait_for(asyncio.wrap_future(self._ended), _JOIN if self._engine else _JOIN_LOADING)

    def is_own_thread(self) -> bool:
        """Whether the engine itself calls: it cannot wait for its own end."""
        return threading.current_thread() is self._thread

    def check_process(self) -> None:
        """Raises EngineDead in a process that was forked from the engine's."""
        if os.getpid() != self._process:
            raise EngineDead(
                f"this process was forked from process {self._process}, which holds the engine: open a model here, after the "
                "fork, or start processes by spawn"
            )

    def _check_ready(self) -> None:
        self.check_process()
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

        def progress(stage: str, done: float) -> None:
            if self._closed:
                raise EngineDead("the engine was closed while it loaded")
            send(Loading(stage, done))

        engine: BuiltEngine | None = None
        try:
            engine = (self._build or _default_build())(self.config, progress)
            send(Ready(engine.info))
            serve(engine.core, self._take_commands, send, self._pulse)
        except Exception as error:
            send(Failed(to_wire(_explained(error))))
        finally:
            try:
                if engine is not None:
                    engine.close()
            finally:
                self._ended.set_result(None)

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


def _explained(error: Exception) -> Exception:
    """Once the main thread has ended, Python starts no more pools of threads."""
    if isinstance(error, RuntimeError) and not threading.main_thread().is_alive():
        return EngineDead(f"the main thread has ended: let it wait for the thread that uses the model ({error})")
    return error


def _stop(commands: queue.SimpleQueue[Command], thread: threading.Thread, process: int) -> None:
    # The thread itself may be the last to let go of its client.
    if os.getpid() == process and thread is not threading.current_thread():
        commands.put(Shutdown())
        thread.join(_JOIN)


def _default_build() -> Build:
    # Here, so that the loop's thread does not wait for the heavy imports.
    from headrace.engine.startup import build_engine

    return build_engine
