"""Starting a process of the engine's: Python with a module, a socket to its parent, and logs as its only output.

Nothing but the standard library is imported here, so that the start is the first thing a command does.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence

from headrace.streams import open_missing_streams

__all__ = ["obey_the_parent", "python_module", "spawn"]

_STDERR = 2
_SAFE_PATH = ("-P",) if sys.version_info >= (3, 11) else ()
"""Without the working directory among the folders of modules: a `random.py` there is the user's, not Python's."""


def python_module(name: str) -> tuple[str, ...]:
    return (sys.executable, *_SAFE_PATH, "-m", name)


def spawn(command: Sequence[str], *arguments: str, stdin: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process, and this end of its link. Its arguments are the descriptor of the other end, then `arguments`. Raises OSError.

    SIGINT and SIGTERM reach the process only once `obey_the_parent` has been called there: a terminal signals the whole group, and
    an interrupt in the middle of its imports would be a traceback.
    """
    open_missing_streams()
    ours, theirs = socket.socketpair()
    # Its output would mix with the answers of a command-line client: logs belong on stderr.
    output = subprocess.DEVNULL if sys.__stderr__ is None else _STDERR
    try:
        with theirs, _signals_held():
            number = theirs.fileno()
            process = subprocess.Popen(
                [*command, str(number), *arguments], pass_fds=[number], stdin=stdin, stdout=output, stderr=output
            )
    except BaseException:
        ours.close()
        raise
    return process, ours


def obey_the_parent() -> None:
    """For the started process: a terminal or a supervisor signals the whole group, and the parent says when to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """A process inherits which signals are held back. Here they come a moment later."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows has none.
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
