"""The engine's own process: `python -m headrace.engine.process DIRECTORY LIFELINE PARENT`, started by `EngineProcess`.

It reads `config.json` in the directory, connects to the two sockets there, and ends when told to, when its device is lost or
when its parent is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import zmq

from headrace.config import Config, read_environment
from headrace.engine.protocol import Beat, Command, Event, Failed, Loading, Ready, decode_command, encode, to_wire
from headrace.engine.service import Build, Pulse, serve
from headrace.errors import HeadraceError

__all__ = ["BEAT_INTERVAL", "main"]

BEAT_INTERVAL = 0.5
"""Seconds between two beats."""
_PR_SET_PDEATHSIG = 1
_LINGER_MS = 1000

_log = logging.getLogger(__name__)


class Link:
    """The engine's end of the main socket. Used by one thread."""

    def __init__(self, directory: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.linger = _LINGER_MS
        self._socket.connect(f"ipc://{directory / 'main'}")

    def send(self, event: Event) -> None:
        self._socket.send(encode(event))

    def receive(self, wait: float) -> list[Command]:
        commands: list[Command] = []
        if wait > 0 and not self._socket.poll(int(wait * 1000) or 1):
            return commands
        with contextlib.suppress(zmq.Again):
            while True:
                commands.append(decode_command(self._socket.recv(zmq.NOBLOCK)))
        return commands

    def close(self) -> None:
        """Returns when the last words have left, or after a second."""
        self._socket.close()
        self._context.term()


def main(arguments: list[str], build: Build | None = None) -> int:
    """0: told to end. 1: could not load, or the device was lost; the client has been told why."""
    directory, lifeline, parent = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    _die_with(parent)
    # A terminal or a supervisor signals the whole group; running requests are drained by the parent, which then says when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=read_environment().log_level.upper(), format="%(levelname)s engine: %(message)s")
    pulse = Pulse()
    threading.Thread(target=_beat, args=(directory, lifeline, pulse), name="beat", daemon=True).start()
    link = Link(directory)
    try:
        return _run(Config.model_validate_json((directory / "config.json").read_bytes()), link, pulse, build)
    finally:
        link.close()


def _run(config: Config, link: Link, pulse: Pulse, build: Build | None) -> int:
    try:
        engine = (build or _default_build())(config, _throttled(link.send))
    except Exception as error:
        if not isinstance(error, HeadraceError):
            _log.exception("the engine could not load")
        link.send(Failed(to_wire(error)))
        return 1
    # What is loaded lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    link.send(Ready(engine.info))
    try:
        serve(engine.core, link.receive, link.send, pulse)
    except Exception as error:
        _log.exception("the engine ends")
        link.send(Failed(to_wire(error)))
        return 1
    finally:
        engine.close()
    return 0


def _default_build() -> Build:
    # The heavy imports come after the first beat, and their failure is told like any other.
    from headrace.engine.startup import build_engine

    return build_engine


def _throttled(send: Callable[[Event], None]) -> Callable[[str, float], None]:
    """A message for each stage and each hundredth of it."""
    last = ("", -1)

    def progress(stage: str, done: float) -> None:
        nonlocal last
        now = (stage, int(done * 100))
        if now != last:
            last = now
            send(Loading(stage, done))

    return progress


def _die_with(parent: int) -> None:
    """Linux kills this process with its parent, even while it is stopped. Elsewhere the lifeline has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _beat(directory: Path, lifeline: int, pulse: Pulse) -> None:
    """A thread: tells the client that this process runs, and ends it when the client's process is gone."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    socket = context.socket(zmq.PUSH)
    socket.linger = 0
    socket.connect(f"ipc://{directory / 'beat'}")
    while True:
        socket.send(encode(Beat(pulse.stalled())))
        # Nothing is ever written to the lifeline: readable means that the other end is closed.
        if select.select([lifeline], [], [], BEAT_INTERVAL)[0]:
            os._exit(0)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    # Threads of a device's runtime must not keep a process alive whose work is over.
    os._exit(code)
