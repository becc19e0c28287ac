"""The parent's handle of an engine process: sends and receives messages, and detects its exit."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import weakref
from collections.abc import Callable, Sequence

from headrace.config import Config
from headrace.engine.channel import Channel
from headrace.engine.launch import COMMAND, EngineProcessHandle, launch
from headrace.engine.wire import Command, Event, Ready, decode_event, encode

__all__ = ["COMMAND", "EngineProcess"]

_EXIT_TIMEOUT = 3.0


class EngineProcess:
    """A running engine process: a new one, or the one that was `launched` before.

    `on_event` and `on_exit` are called on the event loop. `on_exit` is called once, with the kind of exit, after the
    last event: the kernel closes the process's end of the link, which this side detects at once.
    """

    def __init__(
        self,
        config: Config,
        on_event: Callable[[Event], None],
        on_exit: Callable[[str], None],
        command: Sequence[str] = COMMAND,
        launched: EngineProcessHandle | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_event, self._on_exit = on_event, on_exit
        started = launched or launch(command)
        self._process, self._channel = started.process, Channel(started.link)
        self._ready = False
        self._open = True
        started.configure(config.for_engine())
        self._loop.add_reader(self._channel.fileno(), self.drain)
        # Also if no caller has closed it.
        self._discard = weakref.finalize(self, _discard, self._process, self._channel)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Command) -> None:
        """Send a command. Never blocks; the command is dropped if the process has exited."""
        if self._open and not self._channel.send(encode(command)):
            self._loop.add_writer(self._channel.fileno(), self._flush)

    def drain(self) -> None:
        """Deliver all messages that have arrived."""
        if not self._open:
            return
        for message in self._channel.receive():
            event = decode_event(message)
            self._ready = self._ready or isinstance(event, Ready)
            if self._open:
                self._on_event(event)
        if self._channel.closed:
            self._handle_exit()

    def kill(self) -> None:
        """Kill the process; `on_exit` is called afterwards."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """Wait a short time for the process to end, then kill it; `on_exit` is not called. Calling it twice is
        harmless.

        A process that still loads doesn't read commands and has no requests to end, so it is killed at once.
        """
        if self._release():
            if not self._ready:
                self.kill()
            await self._loop.run_in_executor(None, self._reap)

    def _flush(self) -> None:
        if self._channel.flush():
            self._loop.remove_writer(self._channel.fileno())

    def _handle_exit(self) -> None:
        if self._release():
            self.kill()
            code = self._process.wait()
            self._discard()
            self._on_exit(f"killed by signal {-code}" if code < 0 else f"ended with code {code}")

    def _release(self) -> bool:
        if not self._open:
            return False
        self._open = False
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        return True

    def _reap(self) -> None:
        """Wait for the process and clean up. Runs on a thread."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT)
        self._discard()


def _discard(process: subprocess.Popen[bytes], channel: Channel) -> None:
    """Release all resources; kill the process if it still runs."""
    if process.poll() is None:
        process.kill()
        process.wait()
    channel.close()
