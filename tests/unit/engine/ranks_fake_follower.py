"""A rank without a model: what it does stands in the place of its configuration. Run as a process."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator

import numpy as np

from headrace.engine.channel import Channel
from headrace.engine.ranks.rank_messages import (
    BlocksRead,
    Loaded,
    Opened,
    RankFailed,
    RankMessage,
    RunStep,
    Start,
    StepDone,
    Stop,
    decode,
    encode,
)
from headrace.engine.wire import to_wire
from headrace.errors import CheckpointError
from headrace.types import StepResult


def received(link: Channel) -> Iterator[RankMessage]:
    while not link.closed:
        yield from map(decode, link.receive(600))


def main(handle: int) -> int:
    link = Channel(socket.socket(fileno=handle))
    messages = received(link)
    start = next(messages)
    assert isinstance(start, Start)
    if start.config == "fails":
        link.send(encode(RankFailed(to_wire(CheckpointError("no such tensor", "model.safetensors", "q")))))
        return 1
    if start.config == "tells its level":
        link.send(encode(RankFailed(to_wire(CheckpointError(f"level {start.log_level}")))))
        return 1
    if start.config == "dies":
        return 3
    link.send(encode(Opened()))
    link.send(encode(Loaded(2 if start.config == "reads" else 0)))
    for message in messages:
        if isinstance(message, Stop):
            break
        # Its part of each block is its number and the block's; what it was to load comes as a block, too.
        if start.config == "reads" and isinstance(message, RunStep):
            stores = message.plan().stores
            parts = [bytes([start.rank, block]) for block in (() if stores is None else stores.tolist())]
            link.send(encode(BlocksRead(message.step, (*parts, *(data for _, data in message.loads)))))
        # The last stage alone answers, with the number of the step.
        if start.config == "answers" and isinstance(message, RunStep) and start.rank == start.size - 1:
            link.send(encode(StepDone.of(message.step, StepResult(np.array([message.step], np.int32)))))
    if start.config == "stays":
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
