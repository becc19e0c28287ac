"""A command on a pseudo-terminal, for tests that type and read. They wait for text, never for a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["TerminalSession", "terminal_session"]

PATIENCE = 300.0
"""Seconds after which a text that does not come fails the test."""
_TAKE_TERMINAL = """
import os, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Makes the terminal that of the new session, so that Ctrl-C there is a signal, and runs the command."""
_ESCAPES = re.compile(r"\x1b\][^\x07]*\x07|\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[=>78]|\r")


class TerminalSession:
    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self._raw = b""
        self._read = 0
        """Characters of the shown text that were waited for."""

    @property
    def raw(self) -> str:
        """All text so far."""
        return self._raw.decode(errors="replace")

    @property
    def shown(self) -> str:
        """All text so far, without escape sequences."""
        return _ESCAPES.sub("", self.raw)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str) -> str:
        """Wait until `text` is shown behind what was waited for before; returns what was shown up to its end."""
        until = time.monotonic() + PATIENCE
        while (at := self.shown.find(text, self._read)) < 0:
            assert time.monotonic() < until, f"no {text!r} in {self.shown[self._read :]!r}"
            if not self._receive():
                raise AssertionError(f"the command ended without {text!r}: {self.shown[self._read :]!r}")
        start, self._read = self._read, at + len(text)
        return self.shown[start : self._read]

    def wait_for_end(self) -> int:
        """Read until the command ends; returns its exit code."""
        while self._receive():
            pass
        return self.process.wait(PATIENCE)

    def _receive(self) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], PATIENCE)
        assert ready, f"nothing comes any more: {self.shown[-500:]!r}"
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # Its other end is closed.
            return False
        # What a terminal would answer to "where is the cursor?".
        if b"\x1b[6n" in data:
            os.write(self._terminal, b"\x1b[1;1R")
        self._raw += data
        return bool(data)


@contextlib.contextmanager
def terminal_session(*command: str, environ: Mapping[str, str], folder: Path) -> Iterator[TerminalSession]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _TAKE_TERMINAL, *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm", "HEADRACE_CACHE": str(folder / "cache"), **environ},
    )
    os.close(theirs)
    try:
        yield TerminalSession(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
