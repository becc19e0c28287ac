"""The process of each rank but 0: `python -m headrace.engine.ranks.follower SOCKET`, started by `leader`.

It loads its part of the model and runs the plans that it receives, in order. It ends on Stop, when a step fails, and
when rank 0 has exited.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.engine.channel import Channel
from headrace.engine.ranks.rank_messages import (
    BlocksRead,
    RankFailed,
    RankMessage,
    RunStep,
    SampleStep,
    Start,
    StepDone,
    Stop,
    decode,
    encode,
)
from headrace.engine.ranks.result_sender import ResultSender
from headrace.engine.runner import LaunchedStep, Runner
from headrace.engine.spawn import ignore_terminal_signals
from headrace.engine.wire import as_ours, to_wire
from headrace.errors import HeadraceError
from headrace.log_format import name_lines

__all__ = ["follow", "main"]

_log = logging.getLogger(__name__)
Messages = queue.SimpleQueue[RankMessage | Exception]
_DEPTH = 2
"""Steps in flight, as on rank 0."""
_POLL_SECONDS = 60.0
"""Seconds of one wait for messages; another follows."""


def main(arguments: list[str]) -> int:
    """Run the process. Returns its exit code: 0 after Stop; 1 if loading or a step failed, which was reported to rank
    0."""
    ignore_terminal_signals()
    logging.basicConfig(format="%(levelname)s rank: %(message)s")
    link = Channel(socket.socket(fileno=int(arguments[0])))
    messages: Messages = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(link, messages), name="messages", daemon=True)
    reader.start()
    try:
        _run(link, messages)
    except Exception as error:
        if not isinstance(as_ours(error), HeadraceError):
            _log.exception("the rank ends")
        _send(link, RankFailed(to_wire(error)))
        if link.other_end_closed(0):  # Rank 0 has exited: the reading thread cleans up and ends this process.
            reader.join()
        return 1
    return 0


def _run(link: Channel, messages: Messages) -> None:
    # The heavy imports come late, and their failure is reported like any other.
    from headrace.config import Config
    from headrace.engine.rank_loading import load_follower

    start = _next(messages)
    assert isinstance(start, Start)
    logging.getLogger().setLevel(start.log_level)
    server = Config.model_validate_json(start.config).server
    name_lines(f"rank {start.rank}", server.served_model_name or "", server.log_format == "json")
    loaded = load_follower(start, lambda message: _send(link, message), lambda: _next(messages))
    sender = ResultSender(lambda message: _send(link, message), messages.put)
    try:
        follow(loaded.runner, messages, sender, loaded.answers)
    finally:
        loaded.close()


def follow(runner: Runner, messages: Messages, sender: ResultSender, answers: bool = False) -> None:
    """Run steps until Stop. Raises what a step raises. `sender` sends the parts of blocks that steps read, and their
    results if rank 0 gets them from here (`answers`)."""
    in_flight: deque[LaunchedStep] = deque()
    while isinstance(message := _next(messages), RunStep | SampleStep):
        if isinstance(message, RunStep):
            plan = message.plan()
            launched = runner.launch(plan)
            if plan.stores is not None:
                sender.put(partial(_read_blocks, plan.step, launched.take_stored()))
            if answers:
                sender.put(partial(_step_done, plan.step, launched))
                continue
            in_flight.append(launched)
        else:
            message.complete(plan)
            in_flight[-1].sample()
        while in_flight and (len(in_flight) > _DEPTH or in_flight[0].done()):
            in_flight.popleft().result()
    assert isinstance(message, Stop)
    sender.close()


def _step_done(step: int, launched: LaunchedStep) -> StepDone:
    return StepDone.of(step, launched.result())


def _read_blocks(step: int, stored: Callable[[], list[npt.NDArray[np.uint8]] | None]) -> BlocksRead:
    return BlocksRead(step, tuple(row.tobytes() for row in stored() or ()))


def _next(messages: Messages) -> RankMessage:
    """The next message. Raises what another thread of this process has put there."""
    message = messages.get()
    if isinstance(message, Exception):
        raise message
    return message


def _send(link: Channel, message: RankMessage) -> None:
    """Send a message; it is dropped if rank 0 has exited."""
    if not link.send(encode(message)):
        while not link.flush_for(_POLL_SECONDS):
            pass


def _read(link: Channel, messages: Messages) -> None:
    """Receive messages, on the reading thread. After rank 0 has exited, delete the rendezvous folder and end this
    process."""
    meeting: Path | None = None
    # Data that rank 0 did not read makes its end an error here.
    with contextlib.suppress(OSError, msgspec.DecodeError):
        while not link.closed:
            for message in map(decode, link.receive(_POLL_SECONDS)):
                if isinstance(message, Start):
                    meeting = Path(message.rendezvous.removeprefix("file://")).parent
                messages.put(message)
    if meeting is not None:
        shutil.rmtree(meeting, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    # Threads of a device's runtime must not keep the process alive after its work has ended.
    os._exit(code)
