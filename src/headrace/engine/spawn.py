"""An engine process as its parent sees it: sockets in a private directory, a lifeline, and the moment of its death."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import weakref
from collections.abc import Callable, Sequence

import zmq

from headrace.config import Config
from headrace.engine.launch import COMMAND, Launched, launch
from headrace.engine.protocol import Command, Event, Failed, Ready, decode_event, encode

__all__ = ["COMMAND", "EngineProcess"]

_EXIT_TIMEOUT = 3.0
_LAST_WORDS = 0.05
"""Seconds between a process's end and its funeral."""
_HAS_TOLD = 1
"""The exit code of a process that has said why it ends."""
_LOOKS = 20
"""Funerals put off, at most, for what such a process has said and the socket's own thread has not delivered yet."""


class EngineProcess:
    """Starts at once, or takes over what was `launched` before. `on_event` and `on_death` are called on the event loop; `on_death`
    once, with how it ended: the process's end of the lifeline closes, and this side sees it at once.
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
        self._directory, self._process, self._lifeline = started.directory, started.process, started.lifeline
        self._unseen = {"main", "beat"}
        self._ready = self._told = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self._main = self._bind(zmq.DEALER, "main")
        self._beats = self._bind(zmq.PULL, "beat")
        started.configure(config.model_dump_json(exclude={"server"}))
        self._loop.add_reader(self._lifeline.fileno(), self._died)
        self._open = True
        sockets = (self._main, self._beats)
        # Also where nobody has closed it: a context that the collector ends before its sockets would wait for them for ever.
        self._discard = weakref.finalize(self, _discard, started, self._context, sockets)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Command) -> None:
        """Never blocks; dropped where the process is gone."""
        if not self._open:
            return
        with contextlib.suppress(zmq.Again):
            self._main.send(encode(command), zmq.NOBLOCK)
        # Sending may swallow the edge that tells of arrivals.
        self._loop.call_soon(self.drain)

    def drain(self) -> None:
        """Deliver everything that has arrived."""
        for name, source in (("main", self._main), ("beat", self._beats)):
            with contextlib.suppress(zmq.Again):
                while self._open:
                    event = decode_event(source.recv(zmq.NOBLOCK))
                    self._unlink_after(name)
                    self._ready |= isinstance(event, Ready)
                    self._told |= isinstance(event, Failed)
                    self._on_event(event)

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

    def _bind(self, kind: int, name: str) -> zmq.Socket[bytes]:
        sock = self._context.socket(kind)
        sock.set_hwm(0)
        sock.linger = 0
        sock.bind(f"ipc://{self._directory / name}")
        self._loop.add_reader(int(sock.getsockopt(zmq.FD)), self.drain)
        return sock

    def _unlink_after(self, name: str) -> None:
        """Once both sockets are connected, their names are needed no more: nothing is left behind even if we are killed."""
        if self._unseen:
            self._unseen.discard(name)
            if not self._unseen:
                shutil.rmtree(self._directory, ignore_errors=True)

    def _died(self) -> None:
        """The lifeline is closed. Last words may still be on their way through the socket's own thread."""
        self._loop.remove_reader(self._lifeline.fileno())
        self._loop.call_later(_LAST_WORDS, self._bury, _LOOKS)

    def _bury(self, looks: int) -> None:
        self.drain()
        # Looks are counted, not seconds: what a machine that stood still has to deliver comes when it goes on.
        if self._open and looks and not self._told and self._process.poll() == _HAS_TOLD:
            self._loop.call_later(_LAST_WORDS, self._bury, looks - 1)
        elif self._release():
            self.kill()
            code = self._process.wait()
            self._discard()
            self._on_death(f"killed by signal {-code}" if code < 0 else f"ended with code {code}")

    def _release(self) -> bool:
        if not self._open:
            return False
        self._open = False
        self._loop.remove_reader(self._lifeline.fileno())
        for sock in (self._main, self._beats):
            self._loop.remove_reader(int(sock.getsockopt(zmq.FD)))
        return True

    def _reap(self) -> None:
        """A thread. The commands sent last, Shutdown among them, leave before the sockets close."""
        try:
            self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._discard()


def _discard(
    started: Launched, context: zmq.Context[zmq.Socket[bytes]], sockets: tuple[zmq.Socket[bytes], ...]
) -> None:
    """Give everything back, the process too where it still runs."""
    if started.process.poll() is None:
        started.process.kill()
        started.process.wait()
    for sock in sockets:
        sock.close()
    context.term()
    started.lifeline.close()
    shutil.rmtree(started.directory, ignore_errors=True)
