"""Starting an engine's process before there is a configuration for it: its imports take longer than everything else.

Nothing but the standard library is imported here, so that the start is the first thing a command does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from headrace.engine.spawn import python_module, spawn

__all__ = ["COMMAND", "Launched", "launch"]

COMMAND = python_module("headrace.engine.process")


@dataclass(slots=True)
class Launched:
    """A process that imports and then waits for its configuration. As a context manager it ends a process that nobody took over."""

    process: subprocess.Popen[bytes]
    link: socket.socket
    """The other end is the process's: the kernel closes an end when its process dies, however it dies."""
    taken: bool = False

    def configure(self, text: str) -> None:
        """Its configuration as JSON, once; with that, whoever calls is the one to end it."""
        self.taken = True
        assert self.process.stdin is not None
        # A process that has died already is told of by its end of the link.
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
            self.link.close()


def launch(command: Sequence[str] = COMMAND) -> Launched:
    """Raises OSError where no process can be started. The process ends with the thread that calls this."""
    return Launched(*spawn(command, str(os.getpid()), stdin=subprocess.PIPE))
