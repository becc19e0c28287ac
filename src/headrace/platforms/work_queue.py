"""Work in launch order: on one thread of its own, or at once in the caller's."""

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
    """Runs what is submitted, one after the other."""

    def submit(self, work: Callable[[], T]) -> Future[T]: ...

    def close(self) -> None:
        """Waits for what was submitted."""


_Jobs = queue.SimpleQueue["tuple[Future[Any], Callable[[], Any]] | None"]


class ThreadQueue:
    """One thread; `submit` returns at once. `start` runs on the thread before anything else.

    No ThreadPoolExecutor, which takes no work any more once the main thread has ended: engines are closed after that.
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
    """The thread."""
    start()
    while (job := jobs.get()) is not None:
        future, work = job
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
        # Waiting for the next job must not keep alive what this one held.
        del job, future, work


def _finish(jobs: _Jobs, thread: threading.Thread, process: int) -> None:
    """Waits for what was submitted; a forked process has no such thread."""
    jobs.put(None)
    if os.getpid() == process and thread is not threading.current_thread():
        thread.join()


class InlineQueue:
    """The caller's thread; what is submitted has ended when `submit` returns."""

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
    """A tensor that launched work will have made."""

    def __init__(self, step: Future[Mapping[str, Tensor]], name: str) -> None:
        self._step = step
        self._name = name

    def value(self) -> Tensor:
        """Blocks outside the queue's own order. Raises what the work raised."""
        return self._step.result()[self._name]


def resolve(tensor: Tensor) -> Tensor:
    """The tensor itself, for work that runs behind the work that makes it."""
    return tensor.value() if isinstance(tensor, DeferredTensor) else tensor


class DeferredOutputs(Mapping[str, Tensor]):
    """What a launched step returns. Names are learnt from the first run of an executable, which is waited for when they are
    asked for; that may raise what the step raised."""

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
    """A host copy that a queue makes."""

    def __init__(self, future: Future[npt.NDArray[Any]]) -> None:
        self._future = future

    def done(self) -> bool:
        """Never blocks."""
        return self._future.done()

    def result(self) -> npt.NDArray[Any]:
        """Raises PlatformError where the copy or what it waited for failed."""
        if self._future.cancelled():
            raise PlatformError("the device was closed before the copy was made")
        return self._future.result()
