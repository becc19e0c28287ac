"""The engine's own process: `python -m headrace.engine.process LINK PARENT`, started by `EngineProcess`.

LINK is the file descriptor of a socket, PARENT a process id. The process imports the engine's libraries and reads its
configuration (JSON) from standard input. It ends on Shutdown, when its device is lost or when its parent has exited.
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

from headrace.config import Config
from headrace.engine.channel import Channel
from headrace.engine.service import Build, StallClock, serve
from headrace.engine.spawn import ignore_terminal_signals
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
from headrace.environment import read_environment
from headrace.errors import ConfigError, HeadraceError
from headrace.log_format import name_lines

__all__ = ["BEAT_INTERVAL", "main"]

BEAT_INTERVAL = 0.5
"""Seconds between two heartbeats."""
_PR_SET_PDEATHSIG = 1
_FLUSH_TIMEOUT = 1.0
"""Seconds to send the last messages."""

_log = logging.getLogger(__name__)


def main(arguments: list[str], build: Build | None = None) -> int:
    """Run the process. Returns its exit code: 0 after Shutdown; 1 if loading failed or the device was lost, which has
    been reported to the client."""
    _end_with_parent(int(arguments[1]))
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    ignore_terminal_signals()
    try:
        logging.basicConfig(level=read_environment().log_level.upper(), format="%(levelname)s engine: %(message)s")
    except ConfigError:
        return 1  # The parent reads the same variables and reports the error.
    pulse = StallClock()
    threading.Thread(target=_beat, args=(channel, pulse), name="beat", daemon=True).start()
    try:
        return _run(channel, pulse, build)
    finally:
        channel.flush_for(_FLUSH_TIMEOUT)


def _run(channel: Channel, pulse: StallClock, build: Build | None) -> int:
    def send(event: Event) -> None:
        channel.send(encode(event))

    def receive(wait: float) -> list[Command]:
        commands = [decode_command(message) for message in channel.receive(wait)]
        return [*commands, Shutdown()] if channel.closed else commands

    try:
        chosen = build or _default_build()
        text = sys.stdin.buffer.read()
        if not text:  # The parent doesn't need the engine any more, or has exited.
            return 0
        config = Config.model_validate_json(text)
        name_lines("engine", config.server.served_model_name or "", config.server.log_format == "json")
        engine = chosen(config, _throttled(send))
    except Exception as error:
        if not isinstance(as_ours(error), HeadraceError):
            _log.exception("the engine could not load")
        send(Failed(to_wire(error)))
        return 1
    # Loaded objects live as long as the process: the garbage collector need not scan them again.
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
    """Import the engine. The heavy imports start after the first heartbeat, and their failure is reported like any
    other."""
    threading.Thread(target=_load_libraries, name="libraries", daemon=True).start()
    # Imported objects stay. The garbage collector would scan them repeatedly, which adds a tenth to the import time.
    gc.disable()
    from headrace.engine.startup import build_engine

    gc.freeze()
    gc.enable()
    return build_engine


def _load_libraries() -> None:
    """Load torch's shared libraries on a thread, in the same way as its import, while Python modules are imported.

    Loading them through `import` would hold the interpreter's lock for a sixth of torch's import time. An error here
    also occurs there, and is reported there.
    """
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
    """A progress function that sends one message per stage and per percent of it."""
    last = ("", -1)

    def progress(stage: str, done: float) -> None:
        nonlocal last
        now = (stage, int(done * 100))
        if now != last:
            last = now
            send(Loading(stage, done))

    return progress


def _end_with_parent(parent: int) -> None:
    """Let Linux kill this process with its parent, even while it is stopped. Other systems rely on the end of the
    link."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _beat(channel: Channel, pulse: StallClock) -> None:
    """Send heartbeats to the client, on a thread, and end this process when the client's process has exited."""
    while True:
        channel.send(encode(Beat(pulse.stalled())))
        if channel.other_end_closed(BEAT_INTERVAL):
            os._exit(0)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    # Threads of a device's runtime must not keep the process alive after its work has ended.
    os._exit(code)
