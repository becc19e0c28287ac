"""Renders chat templates in processes that can be killed (`render_process` is the other side).

Every job first runs in the fast lane, with an amount of processor time that is enough for most conversations. A job
that uses it up is killed, and runs again in the slow lane, with the full amount and a low priority. So a slow render
delays other slow ones, but not the fast ones. (Some published templates visit every message for every message, and take
seconds for a thousand messages.)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from headrace.tokenization.render_frames import FAULT, Frame, read_frame, send_frame

__all__ = ["Job", "RenderLimits", "RenderStopped", "Renderer"]

_COMMAND = (sys.executable, "-m", "headrace.tokenization.render_process")
_FAST, _SLOW = 4, 2
"""Processes of each lane, at most."""
_SHORT = 0.03
"""Seconds for which a job waits for a busy process before it starts another."""
_NICE = 5
_STDERR = 2


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """The resources that one render may use."""

    first_seconds: float = 0.1
    """Of processor time, in the fast lane."""
    seconds: float = 4.0
    """Of processor time, in the slow lane; there is no slow lane if this is not more than `first_seconds`."""
    memory: int = 512 << 20
    """Bytes in addition to those that the process has when it starts."""
    stuck: float = 20.0
    """Seconds without an answer, in addition to ten times the processor time, after which a process is killed too."""


@dataclass(frozen=True, slots=True)
class Job:
    """Renders of one template. The answers are frames in the same order."""

    template: int
    renders: Callable[[], Sequence[Mapping[str, Any] | None]]
    """The variables of each, made in the lane's thread; None only compiles the template."""


class RenderStopped(Exception):
    """A render was killed, because of its limits or from outside. The message has the reason."""


class Renderer:
    """Renders one checkpoint's templates. May be called from any thread; processes start with the first job."""

    def __init__(self, sources: Sequence[str], limits: RenderLimits) -> None:
        self._setup = {"templates": list(sources), "memory": limits.memory}
        self._limits = limits
        self._open()

    def _open(self) -> None:
        limits = self._limits
        self._owner = os.getpid()
        self._fast = _Lane(self._setup, _FAST, limits.first_seconds, limits.stuck)
        slow = limits.seconds > limits.first_seconds
        self._slow = _Lane(self._setup | {"nice": _NICE}, _SLOW, limits.seconds, limits.stuck) if slow else None

    def _first(self, job: Job) -> Future[list[Frame]]:
        if os.getpid() != self._owner:  # A forked process doesn't have the threads, and must not share the processes.
            self._open()
        return self._fast.submit(job)

    def render(self, job: Job) -> list[Frame]:
        """Raises RenderStopped, what `job.renders` raises, and OSError if no process can be started; TypeError,
        ValueError or RecursionError for variables that are not JSON."""
        try:
            return self._first(job).result()
        except RenderStopped:
            if self._slow is None:
                raise
            return self._slow.submit(job).result()

    async def render_async(self, job: Job) -> list[Frame]:
        """As `render`, without blocking a thread of the caller."""
        try:
            return await asyncio.wrap_future(self._first(job))
        except RenderStopped:
            if self._slow is None:
                raise
            return await asyncio.wrap_future(self._slow.submit(job))

    def close(self) -> None:
        """End the processes now, and not when nothing refers to this renderer any more. No render may follow."""
        if os.getpid() == self._owner:
            self._fast.close()
            if self._slow is not None:
                self._slow.close()


class _Lane:
    """Threads that each use a process while they run a job. The process that was used last is taken first.

    The threads are daemons, unlike a `ThreadPoolExecutor`'s, so that the end of the program doesn't wait for a render.
    """

    def __init__(self, setup: Mapping[str, Any], processes: int, seconds: float, stuck: float) -> None:
        self._setup = json.dumps(setup).encode()
        self._seconds, self._stuck = seconds, stuck + 10 * seconds
        self._jobs: SimpleQueue[tuple[_Lane, Job, Future[list[Frame]]] | None] = SimpleQueue()
        self._unused, self._free = processes, threading.Semaphore(0)
        self._idle: list[_Process] = []
        self._count = 0
        self._changed = threading.Condition()
        self.close = weakref.finalize(self, _end_all, self._idle, self._jobs, processes)
        """Ends the threads and idle processes; no job may follow. A second call has no effect."""

    def submit(self, job: Job) -> Future[list[Frame]]:
        future: Future[list[Frame]] = Future()
        with self._changed:
            if not self._free.acquire(blocking=False) and self._unused:
                self._unused -= 1
                threading.Thread(target=_work, args=(self._jobs,), name="headrace-render", daemon=True).start()
        self._jobs.put((self, job, future))
        return future

    def work(self, job: Job, future: Future[list[Frame]]) -> None:
        """Run a job and set its future. Called in a thread of the lane."""
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(self._run(job))
            except BaseException as error:
                future.set_exception(error)
        self._free.release()

    def _run(self, job: Job) -> list[Frame]:
        renders = job.renders()
        fields = {"template": job.template, "renders": renders, "seconds": self._seconds}
        content = json.dumps(fields, separators=(",", ":")).encode()
        process = self._take()
        try:
            frames = process.run(content, len(renders), self._stuck)
        except OSError as error:
            why = self._end(process, error)
            self._replace()
            raise RenderStopped(why) from None
        except BaseException:
            self._end(process)
            raise
        if frames[-1][1]:
            self._end(process)
        else:
            self._release(process)
        return frames

    def _take(self) -> _Process:
        """An idle process that still runs, or a new one. Raises OSError if none can be started."""
        with self._changed:
            if self._count and not self._idle:
                self._changed.wait(_SHORT)
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    return process
                process.end()
                self._count -= 1
            self._count += 1
        return self._start()

    def _start(self) -> _Process:
        """Start a process that is already counted."""
        try:
            return _Process(self._setup)
        except BaseException:
            with self._changed:
                self._count -= 1
            raise

    def _release(self, process: _Process) -> None:
        if not self.close.alive:  # It was closed while this one worked.
            process.end()
            return
        with self._changed:
            self._idle.append(process)
            self._changed.notify()

    def _replace(self) -> None:
        """Start a process if the last one has ended, so that the next job doesn't wait for the start."""
        with self._changed:
            if self._count:
                return
            self._count = 1
        # If it cannot be started now, the next job raises the error.
        with contextlib.suppress(OSError):
            self._release(self._start())

    def _end(self, process: _Process, error: OSError | None = None) -> str:
        with self._changed:
            self._count -= 1
            self._changed.notify()
        return process.end(error, self._seconds)


class _Process:
    """One render process, used by one thread at a time."""

    def __init__(self, setup: bytes) -> None:
        """Raises OSError if no process can be started."""
        self._link, theirs = socket.socketpair()
        try:
            with theirs:
                arguments = [*_COMMAND, str(theirs.fileno()), str(os.getpid())]
                self._process = subprocess.Popen(
                    arguments, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=_STDERR
                )
        except BaseException:
            self._link.close()
            raise
        self._setup: bytes | None = setup
        self._owner = os.getpid()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, job: bytes, answers: int, seconds: float) -> list[Frame]:
        """The frames that answer a job; if the process ends early, its last frame stands for the missing ones.

        Raises OSError if the process died, or has not answered for `seconds`.
        """
        self._link.settimeout(seconds)
        if self._setup is not None:
            setup, self._setup = self._setup, None
            send_frame(self._link, setup)
        send_frame(self._link, job)
        frames: list[Frame] = []
        while len(frames) < answers:
            frame = read_frame(self._link)
            if frame is None:
                raise ConnectionResetError("the process has died")
            frames.append(frame)
            if frame[1]:
                return frames + [(FAULT, True, frame[2])] * (answers - len(frames))
        return frames

    def end(self, error: OSError | None = None, seconds: float = 0.0) -> str:
        """Kill the process; returns the reason for which it did not answer, given the error that `run` has raised."""
        self._link.close()
        if os.getpid() != self._owner:  # A forked process leaves this to its parent.
            return "it belongs to another process"
        if not isinstance(error, ConnectionError):
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._process.kill()
        code = self._process.wait()
        if isinstance(error, TimeoutError):
            return "the process that renders it did not answer"
        if code == -signal.SIGPROF:
            return f"it was stopped after {seconds:g} s of computing"
        return f"the process that renders it ended with code {code}"


def _work(jobs: SimpleQueue[tuple[_Lane, Job, Future[list[Frame]]] | None]) -> None:
    """Main function of a lane's thread. It holds no reference to the lane between jobs."""
    while (given := jobs.get()) is not None:
        lane, job, future = given
        lane.work(job, future)
        del given, lane, job, future


def _end_all(processes: list[_Process], jobs: SimpleQueue[Any], threads: int) -> None:
    for _ in range(threads):
        jobs.put(None)
    while processes:
        processes.pop().end()
