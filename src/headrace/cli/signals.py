"""Ends a command when a signal comes: at once, without a message, together with every process that it started.

This module imports as little as possible: until it is imported, Ctrl-C prints a traceback.
"""

from __future__ import annotations

import os
import signal

__all__ = ["exit_on_signals"]

_SHOW_CURSOR = b"\x1b[?25h"


def exit_on_signals() -> None:
    """Let Ctrl-C, SIGTERM and SIGHUP end this process from now on. A signal that is ignored (`nohup`) stays ignored.

    The handler does not raise: an exception in the middle of an import or of a callback of the interpreter is printed
    or lost, and cleaning up can take long. Files on disk are written so that the command may end at any moment.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: object) -> None:
    try:
        _kill_children()
        _show_cursor()
    finally:
        os._exit(128 + number)


def _show_cursor() -> None:
    if os.isatty(2):
        os.write(2, _SHOW_CURSOR)  # Progress bars hide it.


def _kill_children() -> None:
    """Kill the child processes. On other systems than Linux, an engine ends when its link to this process closes."""
    own = os.getpid()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit() and _parent(name) == own:
            os.kill(int(name), signal.SIGKILL)  # The id is valid even if the child has ended: no one has waited for it.


def _parent(pid: str) -> int | None:
    """The parent of a process. The process's name, in parentheses, may hold any character, so only what follows it is
    parsed."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
