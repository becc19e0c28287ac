"""The thread of a device: in order, with what its work raises, and to the interpreter's end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from headrace.errors import PlatformError
from headrace.platforms.work_queue import ThreadQueue


def test_work_runs_in_order_behind_its_start() -> None:
    seen: list[object] = []
    worker = ThreadQueue("test", lambda: seen.append("start"))
    futures = [worker.submit(lambda i=i: seen.append(i)) for i in range(5)]  # type: ignore[misc]
    worker.close()
    worker.close()
    assert all(future.done() for future in futures)
    assert seen == ["start", 0, 1, 2, 3, 4]
    with pytest.raises(PlatformError, match="closed"):
        worker.submit(int)


def test_what_work_raises_is_its_futures() -> None:
    worker = ThreadQueue("test", lambda: None)
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 // 0).result()
    assert worker.submit(lambda: 7).result() == 7
    worker.close()


def test_nothing_is_held_and_the_thread_ends_with_its_owner() -> None:
    class Thing:
        pass

    worker, thing = ThreadQueue("to-be-collected", lambda: None), Thing()
    worker.submit(lambda thing=thing: None).result()  # type: ignore[misc]
    gone = weakref.ref(thing)
    del thing
    worker.submit(int).result()
    assert gone() is None
    del worker
    gc.collect()
    assert "to-be-collected" not in {thread.name for thread in threading.enumerate()}


def test_work_is_taken_while_the_interpreter_ends() -> None:
    code = """
import atexit, concurrent.futures.thread, sys
from headrace.platforms.work_queue import ThreadQueue
worker = ThreadQueue("test", lambda: None)
atexit.register(lambda: print(worker.submit(lambda: 5).result()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", "")
