"""The client of an engine in this process, whose loop runs on a separate thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import weakref
from concurrent.futures import Future

from headrace.client.base_client import BaseClient
from headrace.client.request_outputs import TextTokenizer
from headrace.config import Config
from headrace.engine.service import Build, BuiltEngine, Progress, StallClock, serve
from headrace.engine.wire import Command, Event, Failed, Loading, Ready, Shutdown, from_wire, to_wire
from headrace.errors import EngineDead, HeadraceError

__all__ = ["InProcessClient"]

_STALL = 60.0
"""Seconds after which a step counts as hanging."""
_JOIN, _JOIN_LOADING = 10.0, 1.0
"""Seconds to wait for the engine's thread to end."""


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
        self._stall_clock = StallClock()
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()  # Waiters cannot cancel it from now on.
        self._unavailable: str | None = "the engine has not been started"
        self._closed = False

    async def start(self) -> None:
        if self._thread is not None:
            raise EngineDead("the engine was started before: make a new client")
        self._bind_loop()
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(loop, started), name="headrace-engine", daemon=True)
        self._thread.start()
        await started
        # For the interpreter's exit. Finalizers run newest first, so this one, made after the device was opened, stops
        # the engine before the threads of the device.
        weakref.finalize(self, _stop, self._commands, self._thread, self._process)

    async def check_health(self) -> None:
        self._check_ready()
        stalled = self._stall_clock.stalled()
        if stalled > _STALL:
            raise EngineDead(f"the engine's step has not ended for {stalled:.0f} s")

    async def close(self) -> None:
        """Stop the engine. Does nothing in a forked process, which doesn't have the engine's thread."""
        if os.getpid() != self._process:
            return
        self._unavailable, self._closed = "the engine was closed", True
        if self._owner_loop in (None, asyncio.get_running_loop()):
            self._end_all()
        else:
            # Callers that wait in another loop are notified there; a closed loop has no callers.
            with contextlib.suppress(RuntimeError):
                self._owner_loop.call_soon_threadsafe(self._end_all)
        if self._thread is not None:
            self._commands.put(Shutdown())
            # Without an executor, because none can be used while the interpreter exits.
            with contextlib.suppress(asyncio.TimeoutError):
                # While the engine loads, it only checks for the end at its next progress report.
                await asyncio.wait_for(asyncio.wrap_future(self._ended), _JOIN if self._engine else _JOIN_LOADING)

    def is_own_thread(self) -> bool:
        """True on the engine's thread, which cannot wait for its own end."""
        return threading.current_thread() is self._thread

    def check_process(self) -> None:
        """Raises EngineDead in a process that was forked from the engine's."""
        if os.getpid() != self._process:
            raise EngineDead(
                f"this process was forked from process {self._process}, which has the engine: open a model here, after "
                "the fork, or start processes by spawn"
            )

    def _check_ready(self) -> None:
        self.check_process()
        if self._unavailable is not None:
            raise EngineDead(self._unavailable)

    def _send(self, command: Command) -> None:
        self._commands.put(command)

    def _run(self, loop: asyncio.AbstractEventLoop, started: asyncio.Future[None]) -> None:
        """The engine's thread."""

        def send(event: Event) -> None:
            # If the loop was closed without closing the client, no caller is left.
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
            serve(engine.core, self._take_commands, send, self._stall_clock)
        except Exception as error:
            send(Failed(to_wire(_with_remedy(error))))
        finally:
            try:
                if engine is not None:
                    engine.close()
            finally:
                self._ended.set_result(None)

    def _on_event(self, event: Event, started: asyncio.Future[None]) -> None:
        if isinstance(event, Ready):
            self._engine, self._unavailable = event.info, None
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
        if self._unavailable is None:
            self._unavailable = f"the engine ended: {error}"
        self._fail_all(EngineDead(self._unavailable))

    def _take_commands(self, wait: float) -> list[Command]:
        commands: list[Command] = []
        with contextlib.suppress(queue.Empty):
            if wait > 0:
                commands.append(self._commands.get(timeout=wait))
            while True:
                commands.append(self._commands.get_nowait())
        return commands


def _with_remedy(error: Exception) -> Exception:
    """The error with a remedy if the main thread has ended: Python then starts no more thread pools."""
    if isinstance(error, RuntimeError) and not threading.main_thread().is_alive():
        return EngineDead(f"the main thread has ended: let it wait for the thread that uses the model ({error})")
    return error


def _stop(commands: queue.SimpleQueue[Command], thread: threading.Thread, process: int) -> None:
    # The engine's thread itself may drop the last reference to the client.
    if os.getpid() == process and thread is not threading.current_thread():
        commands.put(Shutdown())
        thread.join(_JOIN)


def _default_build() -> Build:
    # Imported on the engine's thread, so that the event loop doesn't wait for the heavy imports.
    from headrace.engine.startup import build_engine

    return build_engine
