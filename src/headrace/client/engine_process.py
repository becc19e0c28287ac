"""An engine process as its parent sees it: messages both ways, and the moment of its death."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import weakref
from collections.abc import Callable, Sequence

from headrace.config import Config
from headrace.engine.channel import Channel
from headrace.engine.launch import COMMAND, Launched, launch
from headrace.engine.wire import Command, Event, Ready, decode_event, encode

__all__ = ["COMMAND", "EngineProcess"]

_EXIT_TIMEOUT = 3.0


class EngineProcess:
    """Starts at once, or takes over what was `launched` before. `on_event` and `on_death` are called on the event loop; `on_death`
    once, with how it ended, after its last words: the process's end of the link closes, and this side sees it at once.
    """

    def __init__(
        self,
        config: Config,
        on_event: Callable[[Event], None],
        on_death: Callable[[str], None],
        command: Sequence[str] = COMMAND,
        launched: Launched | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_event, self._on_death = on_event, on_death
        started = launched or launch(command)
        self._process, self._channel = started.process, Channel(started.link)
        self._ready = False
        self._open = True
        started.configure(config.model_dump_json(exclude={"server"}))
        self._loop.add_reader(self._channel.fileno(), self.drain)
        # Also where nobody has closed it.
        self._discard = weakref.finalize(self, _discard, self._process, self._channel)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Command) -> None:
        """Never blocks; dropped where the process is gone."""
        if self._open and not self._channel.send(encode(command)):
            self._loop.add_writer(self._channel.fileno(), self._flush)

    def drain(self) -> None:
        """Deliver everything that has arrived."""
        if not self._open:
            return
        for message in self._channel.receive():
            event = decode_event(message)
            self._ready = self._ready or isinstance(event, Ready)
            if self._open:
                self._on_event(event)
        if self._channel.closed:
            self._bury()

    def kill(self) -> None:
        """`on_death` follows."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """Wait a little for the process to end, then end it; `on_death` is not called. Twice is harmless.

        One that still loads does not listen, and has nothing to bring to an end.
        """
        if self._release():
            if not self._ready:
                self.kill()
            await self._loop.run_in_executor(None, self._reap)

    def _flush(self) -> None:
        if self._channel.flush():
            self._loop.remove_writer(self._channel.fileno())

    def _bury(self) -> None:
        if self._release():
            self.kill()
            code = self._process.wait()
            self._discard()
            self._on_death(f"killed by signal {-code}" if code < 0 else f"ended with code {code}")

    def _release(self) -> bool:
        if not self._open:
            return False
        self._open = False
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        return True

    def _reap(self) -> None:
        """A thread."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT)
        self._discard()


def _discard(process: subprocess.Popen[bytes], channel: Channel) -> None:
    """Give everything back, the process too where it still runs."""
    if process.poll() is None:
        process.kill()
        process.wait()
    channel.close()
