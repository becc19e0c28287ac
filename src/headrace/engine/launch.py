"""Starting an engine's process before there is a configuration for it: its imports take longer than everything else.

Nothing but the standard library is imported here, so that the start is the first thing a command does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

__all__ = ["COMMAND", "Launched", "launch"]

COMMAND: tuple[str, ...] = (sys.executable, "-m", "headrace.engine.process")
_LONGEST_PATH = 90
"""Unix socket addresses hold about a hundred bytes."""
_STDERR = 2


@dataclass(slots=True)
class Launched:
    """A process that imports and then waits for its configuration. As a context manager it ends a process that nobody took over."""

    directory: Path
    """Private; for the sockets of `spawn.EngineProcess`."""
    process: subprocess.Popen[bytes]
    lifeline: socket.socket
    """The other end is the process's: the kernel closes an end when its process dies, however it dies."""
    taken: bool = False

    def configure(self, text: str) -> None:
        """Its configuration as JSON, once; with that, whoever calls is the one to end it."""
        self.taken = True
        assert self.process.stdin is not None
        # A process that has died already is told of by its lifeline.
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(text.encode())

    def __enter__(self) -> Launched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.taken:
            self.process.kill()
            self.process.wait()
            assert self.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            self.lifeline.close()
            shutil.rmtree(self.directory, ignore_errors=True)


def launch(command: Sequence[str] = COMMAND) -> Launched:
    """Raises OSError where no process can be started. The process ends with the thread that calls this."""
    directory = _private_directory()
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            arguments = [*command, str(directory), str(theirs.fileno()), str(os.getpid())]
            # Its output would mix with the answers of a command-line client: logs belong on stderr.
            process = subprocess.Popen(arguments, pass_fds=[theirs.fileno()], stdin=subprocess.PIPE, stdout=_STDERR)
    except BaseException:
        ours.close()
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return Launched(directory, process, ours)


def _private_directory() -> Path:
    """Of mode 0700, with a path short enough for a socket's address."""
    path = Path(tempfile.mkdtemp(prefix="headrace-"))
    if len(str(path)) > _LONGEST_PATH:
        path.rmdir()
        path = Path(tempfile.mkdtemp(prefix="headrace-", dir="/tmp"))
    return path
