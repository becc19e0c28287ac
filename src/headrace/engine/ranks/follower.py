"""The process of a rank that is not the first: `python -m headrace.engine.ranks.follower SOCKET`, started by `leader`.

It loads its part of the model and runs the plans that it is sent, in their order. It ends when told to, when a step
fails, and when rank 0 is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import socket
import sys
import threading
from collections import deque
from pathlib import Path

import msgspec

from headrace.engine.channel import Channel
from headrace.engine.ranks.rank_messages import Down, Message, RunStep, Start, Stop, decode, encode
from headrace.engine.runner import Launched, Runner
from headrace.engine.spawn import obey_the_parent
from headrace.engine.wire import as_ours, to_wire
from headrace.errors import HeadraceError

__all__ = ["follow", "main"]

_log = logging.getLogger(__name__)
_DEPTH = 2
"""Steps in flight, as on rank 0."""
_PATIENCE = 60.0
"""Seconds of one wait for messages; another follows."""


def main(arguments: list[str]) -> int:
    """0: told to end. 1: could not load, or a step failed; rank 0 has been told why."""
    obey_the_parent()
    logging.basicConfig(format="%(levelname)s rank: %(message)s")
    link = Channel(socket.socket(fileno=int(arguments[0])))
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(link, messages), name="messages", daemon=True)
    reader.start()
    try:
        _run(link, messages)
    except Exception as error:
        if not isinstance(as_ours(error), HeadraceError):
            _log.exception("the rank ends")
        _send(link, Down(to_wire(error)))
        if link.other_end_closed(0):  # Rank 0 is gone: the reading thread sees it too, clears up and ends this process.
            reader.join()
        return 1
    return 0


def _run(link: Channel, messages: queue.SimpleQueue[Message]) -> None:
    # The heavy imports come late, and their failure is reported like any other.
    from headrace.engine.loading import load_follower

    start = messages.get()
    assert isinstance(start, Start)
    logging.getLogger().setLevel(start.log_level)
    loaded = load_follower(start, lambda message: _send(link, message), messages.get)
    try:
        follow(loaded.runner, messages)
    finally:
        loaded.close()


def follow(runner: Runner, messages: queue.SimpleQueue[Message]) -> None:
    """Run steps until told to end. Raises what a step raises."""
    flying: deque[Launched] = deque()
    while isinstance(message := messages.get(), RunStep):
        flying.append(runner.launch(message.plan()))
        while flying and (len(flying) > _DEPTH or flying[0].done()):
            flying.popleft().result()
    assert isinstance(message, Stop)


def _send(link: Channel, message: Message) -> None:
    """Dropped if rank 0 is gone."""
    if not link.send(encode(message)):
        while not link.flush_for(_PATIENCE):
            pass


def _read(link: Channel, messages: queue.SimpleQueue[Message]) -> None:
    """The reading thread. Without rank 0 this process has no work, and nobody else clears up where the ranks met."""
    meeting: Path | None = None
    # Data that rank 0 did not read makes its end an error here.
    with contextlib.suppress(OSError, msgspec.DecodeError):
        while not link.closed:
            for message in map(decode, link.receive(_PATIENCE)):
                if isinstance(message, Start):
                    meeting = Path(message.rendezvous.removeprefix("file://")).parent
                messages.put(message)
    if meeting is not None:
        shutil.rmtree(meeting, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    # Threads of a device's runtime must not keep a process alive whose work is over.
    os._exit(code)
