"""The engine's own process: `python -m headrace.engine.process LINK PARENT`, started by `EngineProcess`.

LINK is a socket's file descriptor, PARENT a process. It imports what an engine needs, reads its configuration (JSON) from
standard input, and ends when told to, when its device is lost or when its parent is gone.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from headrace.config import Config, read_environment
from headrace.engine.channel import Channel
from headrace.engine.service import Build, Pulse, serve
from headrace.engine.spawn import obey_the_parent
from headrace.engine.wire import (
    Beat,
    Command,
    Event,
    Failed,
    Loading,
    Ready,
    Shutdown,
    as_ours,
    decode_command,
    encode,
    to_wire,
)
from headrace.errors import ConfigError, HeadraceError

__all__ = ["BEAT_INTERVAL", "main"]

BEAT_INTERVAL = 0.5
"""Seconds between two beats."""
_PR_SET_PDEATHSIG = 1
_LINGER = 1.0
"""Seconds for the last words to leave."""

_log = logging.getLogger(__name__)


def main(arguments: list[str], build: Build | None = None) -> int:
    """0: told to end. 1: could not load, or the device was lost; the client has been told why."""
    _die_with(int(arguments[1]))
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    obey_the_parent()
    try:
        logging.basicConfig(level=read_environment().log_level.upper(), format="%(levelname)s engine: %(message)s")
    except ConfigError:
        return 1  # Whoever started us reads the same variables, and tells what is wrong with them.
    pulse = Pulse()
    threading.Thread(target=_beat, args=(channel, pulse), name="beat", daemon=True).start()
    try:
        return _run(channel, pulse, build)
    finally:
        channel.flush_for(_LINGER)


def _run(channel: Channel, pulse: Pulse, build: Build | None) -> int:
    def send(event: Event) -> None:
        channel.send(encode(event))

    def receive(wait: float) -> list[Command]:
        commands = [decode_command(message) for message in channel.receive(wait)]
        return [*commands, Shutdown()] if channel.closed else commands

    try:
        chosen = build or _default_build()
        text = sys.stdin.buffer.read()
        if not text:  # The parent has changed its mind, or is gone.
            return 0
        engine = chosen(Config.model_validate_json(text), _throttled(send))
    except Exception as error:
        if not isinstance(as_ours(error), HeadraceError):
            _log.exception("the engine could not load")
        send(Failed(to_wire(error)))
        return 1
    # What is loaded lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    send(Ready(engine.info))
    try:
        serve(engine.core, receive, send, pulse)
    except Exception as error:
        _log.exception("the engine ends")
        send(Failed(to_wire(error)))
        return 1
    finally:
        engine.close()
    return 0


def _default_build() -> Build:
    """The heavy imports come after the first beat, and their failure is told like any other."""
    threading.Thread(target=_load_libraries, name="libraries", daemon=True).start()
    # What is imported stays; the collector would look at it again and again, for a tenth of the time that it takes.
    gc.disable()
    from headrace.engine.startup import build_engine

    gc.freeze()
    gc.enable()
    return build_engine


def _load_libraries() -> None:
    """A thread: torch's shared libraries, as its import will load them, while Python modules are imported. Loading them through
    `import` would hold the interpreter's lock for a sixth of the time that torch takes. What fails here fails there, and is told."""
    found = importlib.util.find_spec("torch") if sys.platform == "linux" else None
    if found is None or found.origin is None:
        return
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    for name, mode in (("libtorch_global_deps.so", os.RTLD_NOW | os.RTLD_GLOBAL), ("libtorch_python.so", os.RTLD_NOW)):
        path = Path(found.origin).parent / "lib" / name
        if path.exists():
            dlopen(os.fsencode(path), mode)


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
    """Linux kills this process with its parent, even while it is stopped. Elsewhere the end of the link has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _beat(channel: Channel, pulse: Pulse) -> None:
    """A thread: tells the client that this process runs, and ends it when the client's process is gone."""
    while True:
        channel.send(encode(Beat(pulse.stalled())))
        if channel.other_end_closed(BEAT_INTERVAL):
            os._exit(0)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    # Threads of a device's runtime must not keep a process alive whose work is over.
    os._exit(code)
