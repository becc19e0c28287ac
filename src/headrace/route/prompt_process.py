"""The process that reads prompts for the router: `python -m headrace.route.prompt_process LINK PARENT`.

LINK is a connected socket's file descriptor. The first frame says which model; then each frame is a request, answered
in order with the number of its tokens and the names of its blocks. So the router's loop neither renders nor tokenises.
A checkpoint's template may run forever: each request has an amount of processor time, after which the kernel ends the
process, and its address space is limited. The router starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import sys
from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.route.prompts import PromptReader, load_reader
from headrace.tokenization.render_frames import read_frame, send_frame
from headrace.transfer.chain import chain, first_hash

__all__ = ["PromptReply", "PromptRequest", "PromptSetup", "main"]

_SECONDS = 2.0
"""Of processor time for one request."""
_MEMORY = 2 << 30
"""Bytes of address space, in addition to those after loading."""


class PromptSetup(msgspec.Struct, array_like=True):
    path: str
    model: str
    max_model_len: int


class PromptRequest(msgspec.Struct, array_like=True):
    path: str
    """Of the API."""
    layouts: list[tuple[bytes, int]]
    """(What a chain begins with, tokens of a block)."""
    body: bytes


class PromptReply(msgspec.Struct, array_like=True):
    tokens: int = 0
    """0: the request has no prompt, or an engine would refuse it."""
    chains: list[bytes] = []
    """For each layout the names of the full blocks, one behind the other."""
    error: str = ""
    """Why no prompt can be read; then the process ends."""


def main(link: int, parent: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.getppid() != parent:
        return
    with contextlib.suppress(OSError):
        _serve(socket.socket(fileno=link))


def _serve(link: socket.socket) -> None:
    frame = read_frame(link)
    if frame is None:
        return
    setup = msgspec.msgpack.decode(frame[2], type=PromptSetup)
    encode = msgspec.msgpack.Encoder().encode
    try:
        reader = load_reader(setup.path, setup.model, setup.max_model_len)
    except (HeadraceError, OSError) as error:
        send_frame(link, encode(PromptReply(error=str(error))))
        return
    send_frame(link, encode(PromptReply()))
    _limit_memory()
    gc.freeze()
    decode = msgspec.msgpack.Decoder(PromptRequest).decode
    loop = asyncio.new_event_loop()
    while (frame := read_frame(link)) is not None:
        # The default action of SIGPROF ends the process, even in the middle of a native call.
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        send_frame(link, encode(loop.run_until_complete(_read(reader, decode(frame[2])))))
    loop.close()


async def _read(reader: PromptReader, request: PromptRequest) -> PromptReply:
    prompt = await reader.read(request.path, request.body)
    if prompt is None:
        return PromptReply()
    tokens, salt = prompt.tokens, prompt.salt
    chains = []
    for layout, size in request.layouts:
        blocks = (tokens[at : at + size] for at in range(0, len(tokens) - size + 1, size))
        chains.append(b"".join(chain(first_hash(layout, "", salt), blocks)))
    return PromptReply(len(tokens), chains)


def _limit_memory() -> None:
    limit: Any = resource.RLIMIT_AS
    hard = resource.getrlimit(limit)[1]
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
        wanted = int(file.read().split()[0]) * resource.getpagesize() + _MEMORY
        resource.setrlimit(limit, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
