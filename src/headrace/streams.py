"""Opens the standard streams that a process was started without."""

from __future__ import annotations

import os
import sys

__all__ = ["open_missing_streams"]

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_missing_streams(needs_stdout: bool = False) -> None:
    """Replace a closed stdin, stdout or stderr by /dev/null. With `needs_stdout`, text for a closed stdout is an
    OSError (EBADF) when it is flushed; otherwise it is dropped.

    Otherwise the next socket would get the number of a closed stream, and libraries or child processes that write to
    "stderr" would write into that socket. Therefore this must run before any file is opened.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            lost = needs_stdout and name == "stdout"
            os.open(os.devnull, os.O_RDONLY if lost else os.O_RDWR)  # The lowest free number: this one.
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
