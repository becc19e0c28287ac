"""Starts a process of the engine: Python with a module, a socket to its parent, and logs as its only output.

Only the standard library is imported here, so that a command can start the process first.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from headrace.streams import open_missing_streams

__all__ = ["ignore_terminal_signals", "python_module", "spawn"]

_STDERR = 2
_SAFE_PATH = ("-P",) if sys.version_info >= (3, 11) else ()
"""Leaves the working directory out of the module path: a `random.py` there must not replace Python's."""


def python_module(name: str) -> tuple[str, ...]:
    return (sys.executable, *_SAFE_PATH, "-m", name)


def spawn(command: Sequence[str], *arguments: str, stdin: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process and return it with this end of its link. Raises OSError.

    The arguments of the process are the descriptor of the other end, then `arguments`. SIGINT and SIGTERM are blocked
    in the process until it calls `ignore_terminal_signals`: a terminal signals the complete process group, and an
    interrupt during the imports would print a traceback.
    """
    open_missing_streams()
    ours, theirs = socket.socketpair()
    # Its output must not mix with the answers of a command-line client: logs go to stderr.
    try:
        with theirs, _output() as output, _signals_held():
            number = theirs.fileno()
            process = subprocess.Popen(
                [*command, str(number), *arguments], pass_fds=[number], stdin=stdin, stdout=output, stderr=output
            )
    except BaseException:
        ours.close()
        raise
    return process, ours


@contextlib.contextmanager
def _output() -> Iterator[int]:
    """The descriptor for all that the process writes. On a terminal its lines go through `sys.stderr` of this process,
    which prints them above a progress bar instead of into it."""
    if sys.__stderr__ is None:
        yield subprocess.DEVNULL
    elif not sys.__stderr__.isatty():
        yield _STDERR
    else:
        reading, writing = os.pipe()
        relay = threading.Thread(target=_relay, args=(reading,), name="log relay", daemon=True)
        relay.start()
        # The last lines of a process that has failed; one that runs on doesn't delay the exit.
        atexit.register(relay.join, 0.5)
        try:
            yield writing
        finally:
            os.close(writing)


def _relay(reading: int) -> None:
    with open(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with contextlib.suppress(OSError, ValueError):  # The terminal is gone.
                sys.stderr.write(line)
                sys.stderr.flush()


def ignore_terminal_signals() -> None:
    """Ignore SIGINT and SIGTERM in the started process. A terminal or supervisor signals the complete process group,
    but only the parent decides when this process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Block the signals while a process is started, because it inherits the mask. This process receives them
    afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows has none.
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
