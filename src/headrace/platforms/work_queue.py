"""Queues that run work in launch order: on a separate thread, or at once in the caller's thread."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import numpy.typing as npt

from headrace.errors import PlatformError
from headrace.platforms.interface import Tensor

__all__ = ["DeferredOutputs", "DeferredTensor", "FuturePending", "InlineQueue", "ThreadQueue", "WorkQueue", "resolve"]

T = TypeVar("T")


class WorkQueue(Protocol):
    """Runs submitted work, one item after the other."""

    def submit(self, work: Callable[[], T]) -> Future[T]: ...

    def close(self) -> None:
        """Wait for all submitted work."""


_Jobs = queue.SimpleQueue["tuple[Future[Any], Callable[[], Any]] | None"]


class ThreadQueue:
    """A queue with one thread; `submit` returns at once. `start` runs first on the thread.

    This is not a ThreadPoolExecutor, which accepts no work after the main thread has ended: engines are closed later.
    """

    def __init__(self, name: str, start: Callable[[], None]) -> None:
        self._jobs: _Jobs = queue.SimpleQueue()
        thread = threading.Thread(target=_work, args=(self._jobs, start), name=name, daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _finish, self._jobs, thread, os.getpid())

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        if not self._end.alive:
            raise PlatformError("the device has been closed")
        self._jobs.put((future, work))
        return future

    def close(self) -> None:
        self._end()


def _work(jobs: _Jobs, start: Callable[[], None]) -> None:
    """Run the jobs, on the queue's thread."""
    start()
    while (job := jobs.get()) is not None:
        future, work = job
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
        # Waiting for the next job must not keep the objects of this one alive.
        del job, future, work


def _finish(jobs: _Jobs, thread: threading.Thread, process: int) -> None:
    """Wait for all submitted work. A forked process doesn't have the thread."""
    jobs.put(None)
    if os.getpid() == process and thread is not threading.current_thread():
        thread.join()


class InlineQueue:
    """A queue on the caller's thread: the work has ended when `submit` returns."""

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass


class DeferredTensor:
    """A tensor that launched work will make."""

    def __init__(self, step: Future[Mapping[str, Tensor]], name: str) -> None:
        self._step = step
        self._name = name

    def value(self) -> Tensor:
        """The tensor. Blocks, except on the queue itself. Raises what the work raised."""
        return self._step.result()[self._name]


def resolve(tensor: Tensor) -> Tensor:
    """The actual tensor, for work that runs after the work that makes it."""
    return tensor.value() if isinstance(tensor, DeferredTensor) else tensor


class DeferredOutputs(Mapping[str, Tensor]):
    """The outputs of a launched step. Their names are only known after the first run of an executable: reading them
    waits for that run and may raise what the step raised."""

    def __init__(self, step: Future[Mapping[str, Tensor]], names: tuple[str, ...] | None) -> None:
        self._step = step
        self._known = names

    @property
    def names(self) -> tuple[str, ...]:
        if self._known is None:
            self._known = tuple(self._step.result())
        return self._known

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        return DeferredTensor(self._step, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class FuturePending:
    """A `Pending` for a host copy that a queue makes."""

    def __init__(self, future: Future[npt.NDArray[Any]]) -> None:
        self._future = future

    def done(self) -> bool:
        """Never blocks."""
        return self._future.done()

    def result(self) -> npt.NDArray[Any]:
        """Raises PlatformError if the copy or the work before it failed."""
        if self._future.cancelled():
            raise PlatformError("the device was closed before the copy was made")
        return self._future.result()
