"""The loop around an engine: commands in, events out, until Shutdown. It is the same in a thread and in a process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from headrace.config import Config
from headrace.engine.core_loop import EngineCore
from headrace.engine.profiling import ProfileReport
from headrace.engine.whole_answers import WholeAnswers
from headrace.engine.wire import (
    Abort,
    Add,
    AddAll,
    CacheChanged,
    CacheContents,
    CacheFlushed,
    Command,
    Deltas,
    EngineInfo,
    Event,
    Failed,
    Finish,
    FlushCache,
    GetStats,
    GetView,
    Park,
    Profiled,
    Refused,
    Shutdown,
    StartProfile,
    StatsReply,
    StopProfile,
    ViewReply,
    WatchCache,
    WireError,
    to_wire,
)
from headrace.errors import ConfigError, HeadraceError, PlatformError

__all__ = ["Build", "BuiltEngine", "Progress", "StallClock", "serve"]

Receive = Callable[[float], list[Command]]
"""Returns the commands that have arrived; waits up to so many seconds for the first."""
Send = Callable[[Event], None]

Progress = Callable[[str, float], None]
"""Called while an engine loads: (stage, done from 0 to 1)."""

_log = logging.getLogger(__name__)

_IDLE = 1.0
_STUCK = 0.001


class BuiltEngine(Protocol):
    """An engine that is ready."""

    @property
    def core(self) -> EngineCore: ...

    @property
    def info(self) -> EngineInfo: ...

    def close(self) -> None:
        """Release the device."""


Build = Callable[[Config, Progress], BuiltEngine]


class StallClock:
    """Measures how long the loop has made no progress. The loop writes it, the heartbeat thread reads it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None

    def beat(self, busy: bool) -> None:
        self._since = self._clock() if busy else None

    def stalled(self) -> float:
        """Seconds since the last iteration; 0 if the loop had nothing to do."""
        since = self._since
        return 0.0 if since is None else self._clock() - since


def serve(core: EngineCore, receive: Receive, send: Send, pulse: StallClock) -> None:
    """Run until Shutdown. Raises DeviceLost after a Failed event has been sent."""
    wait, whole = 0.0, WholeAnswers()
    while True:
        for command in receive(wait):
            if isinstance(command, Shutdown):
                return
            _handle(core, command, send, whole)
        _send_changes(core, send)
        busy = core.has_work()
        pulse.beat(busy)
        if not busy:
            wait = _IDLE
            continue
        try:
            deltas = core.step()
        except PlatformError as error:
            send(Failed(to_wire(error)))
            raise
        pulse.beat(busy)
        _send_changes(core, send)
        for ids, reason in core.take_refused():
            whole.forget(ids)
            send(Refused(ids, to_wire(reason)))
        whole.begin(request.id for request in core.chains.take_begun() if request.whole)
        passed = whole.pass_on(deltas)
        if passed:
            send(Deltas(passed))
        # If nothing runs and no work can be scheduled, wait for a command instead of using the processor.
        wait = 0.0 if core.in_flight or deltas else _STUCK


def _handle(core: EngineCore, command: Command, send: Send, whole: WholeAnswers) -> None:
    if isinstance(command, Add):
        _add(core, command, send, whole)
    elif isinstance(command, AddAll):
        for one in command.adds:
            _add(core, one, send, whole)
    elif isinstance(command, Abort):
        whole.forget(command.ids)
        core.abort(command.ids)
    elif isinstance(command, Finish):
        whole.forget([command.id])
        core.finish(command.id)
    elif isinstance(command, Park):
        core.park(command.id)
    elif isinstance(command, GetStats):
        send(StatsReply(command.number, core.stats()))
    elif isinstance(command, GetView):
        send(ViewReply(command.number, core.view()))
    elif isinstance(command, FlushCache):
        send(CacheFlushed(command.number, core.flush_cache()))
    elif isinstance(command, WatchCache):
        _watch(core, command, send)
    elif isinstance(command, StartProfile | StopProfile):
        _profile(core, command, send)


def _profile(core: EngineCore, command: StartProfile | StopProfile, send: Send) -> None:
    def done(found: ProfileReport | HeadraceError) -> None:
        if isinstance(found, HeadraceError):
            send(Profiled(command.number, error=to_wire(found)))
        else:
            send(Profiled(command.number, found.file, found.steps))

    try:
        if isinstance(command, StopProfile):
            core.profiler.stop(done)
        else:
            core.profiler.start(Path(command.folder), command.steps)
            send(Profiled(command.number))
    except HeadraceError as error:
        done(error)
    except Exception as error:
        done(ConfigError(f"torch.profiler: {type(error).__name__}: {error}"))


def _watch(core: EngineCore, command: WatchCache, send: Send) -> None:
    events = core.cache_events
    if events is None:
        return
    if command.on:
        _send_changes(core, send)
        send(CacheContents(events.watch(command.tokens)))
    else:
        events.unwatch()


def _send_changes(core: EngineCore, send: Send) -> None:
    """Send what has changed in the prefix cache, if someone watches it."""
    if core.cache_events is not None and (batch := core.cache_events.take()) is not None:
        send(CacheChanged(batch))


def _add(core: EngineCore, command: Add, send: Send, whole: WholeAnswers) -> None:
    request = command.request
    children = [replace(request, id=i, params=replace(request.params, seed=s)) for i, s in command.children]
    try:
        core.add(children)
        if request.whole:
            whole.begin(child.id for child in children)
    except HeadraceError as error:
        send(Refused([child.id for child in children], to_wire(error)))
    except Exception as error:
        # An internal error ends this request, not the engine.
        _log.exception("request %s could not be added", request.id)
        what = WireError("HeadraceError", f"the engine failed on this request: {type(error).__name__}: {error}")
        send(Refused([child.id for child in children], what))
