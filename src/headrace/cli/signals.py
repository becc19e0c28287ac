"""How a command ends when a signal comes: at once, without a word, and with every process that it started.

As little as can be is imported here: before it is, Ctrl-C is a traceback.
"""

from __future__ import annotations

import os
import signal

__all__ = ["exit_on_signals"]

_SHOW_CURSOR = b"\x1b[?25h"


def exit_on_signals() -> None:
    """Ctrl-C, SIGTERM and SIGHUP end this process from now on, whatever it does. One that is ignored (`nohup`) stays ignored.

    The handler does not raise: an exception in the middle of an import, or of something that the interpreter calls back, is printed or
    lost, and what would clean up can take long. What a command leaves on disk is made so that it may end at any moment.
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
    """Elsewhere than on Linux an engine sees by its link that this process is gone."""
    own = os.getpid()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit() and _parent(name) == own:
            os.kill(int(name), signal.SIGKILL)  # One that has ended is still there, since nobody has waited for it.


def _parent(pid: str) -> int | None:
    """The name of a process, in parentheses, may hold anything; what follows it may not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
