"""A rank without a model: what it does stands in the place of its configuration. Run as a process."""

from __future__ import annotations

import os
import signal
import socket
import sys

from headrace.engine.ranks.rank_messages import Down, Loaded, Opened, Start, Step, receive, send
from headrace.engine.wire import to_wire
from headrace.errors import CheckpointError


def main(handle: int) -> int:
    link = socket.socket(fileno=handle)
    start = receive(link)
    assert isinstance(start, Start)
    if start.config == "fails":
        send(link, Down(to_wire(CheckpointError("no such tensor", "model.safetensors", "q"))))
        return 1
    if start.config == "dies":
        return 3
    send(link, Opened())
    send(link, Loaded())
    while isinstance(message := receive(link), Step):
        if start.config == "killed at 2" and message.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    if start.config == "stays":
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
