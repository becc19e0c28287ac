"""Starts an engine's process before its configuration is known, because its imports take longer than everything else.

Only the standard library is imported here, so that a command can start the process first.
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

__all__ = ["COMMAND", "EngineProcessHandle", "launch"]

COMMAND = python_module("headrace.engine.process")


@dataclass(slots=True)
class EngineProcessHandle:
    """A process that does its imports and then waits for its configuration. As a context manager it kills a process
    that was not configured."""

    process: subprocess.Popen[bytes]
    link: socket.socket
    """The other end belongs to the process: the kernel closes it when the process exits for any reason."""
    taken: bool = False

    def configure(self, text: str) -> None:
        """Send the configuration as JSON, once. From then on the caller is responsible for ending the process."""
        self.taken = True
        assert self.process.stdin is not None
        # The link reports a process that has already exited.
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(text.encode())

    def discard(self) -> None:
        """End a process that is not needed. A second call has no effect."""
        if not self.taken:
            self.taken = True
            self.process.kill()
            self.process.wait()
            assert self.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            self.link.close()

    def __enter__(self) -> EngineProcessHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


def launch(command: Sequence[str] = COMMAND) -> EngineProcessHandle:
    """Start a process. Raises OSError if it cannot be started. The process ends with the thread that calls this."""
    return EngineProcessHandle(*spawn(command, str(os.getpid()), stdin=subprocess.PIPE))
