"""The router's side of the processes that read prompts: one for usual requests, one for long ones."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.route.prompt_process import PromptReply, PromptRequest, PromptSetup
from headrace.transfer.chain import HASH_BYTES

__all__ = ["PromptClient", "files_of"]

_log = logging.getLogger(__name__)
_COMMAND = (sys.executable, "-m", "headrace.route.prompt_process")
_HEADER = struct.Struct("<BBQ")
"""As in `render_frames`."""
_LONG = 1 << 16
"""Bytes of a body from which a request counts as long."""
_MOST_WAITING = 256
"""Requests that wait for one process; more are placed without their prompts."""
_PATIENCE = 3.0
"""Seconds without an answer after which a process is ended, and requests are placed without their prompts."""
_PAUSE = 1.0
"""Seconds before a process that has ended is started again."""
Layout = tuple[bytes, int]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PromptReply).decode


class PromptClient:
    """Reads the prompts of one model. Thread: the event loop's."""

    def __init__(self, path: str, model: str, max_model_len: int, command: Sequence[str] = _COMMAND) -> None:
        self.path, self.files = path, files_of(path)
        setup = _encode(PromptSetup(path, model, max_model_len))
        self._lanes = [_Lane(setup, command, f"{model} from {path}") for _ in range(2)]
        self._lanes[0].start()

    @property
    def ready(self) -> bool:
        return self._lanes[0].ready

    @property
    def failed(self) -> bool:
        """The tokenizer cannot be loaded here."""
        return any(lane.failed for lane in self._lanes)

    async def read(self, path: str, body: bytes, layouts: Sequence[Layout]) -> tuple[int, dict[Layout, list[bytes]]]:
        """(Tokens of a request's prompt, names of its blocks by layout); (0, {}) if they cannot be read."""
        reply = await self._lanes[len(body) >= _LONG].ask(_encode(PromptRequest(path, list(layouts), body)))
        if reply is None or not reply.tokens:
            return 0, {}
        return reply.tokens, {layout: _names(chain) for layout, chain in zip(layouts, reply.chains, strict=True)}

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


def files_of(path: str) -> tuple[tuple[str, int, int, int], ...]:
    """Name, inode, bytes and time of change in nanoseconds of each file of a folder, or of the one file at `path`: if
    they differ, so do the files. Empty if there are none on this machine."""
    try:
        if not os.path.isdir(path):
            return (_described("", os.stat(path)),)
        with os.scandir(path) as entries:
            return tuple(sorted(_described(one.name, one.stat()) for one in entries if one.is_file()))
    except OSError:
        return ()


def _described(name: str, found: os.stat_result) -> tuple[str, int, int, int]:
    return name, found.st_ino, found.st_size, found.st_mtime_ns


def _names(chain: bytes) -> list[bytes]:
    return [chain[at : at + HASH_BYTES] for at in range(0, len(chain), HASH_BYTES)]


class _Lane(asyncio.Protocol):
    """One process, which answers in order. It is started with the first request."""

    def __init__(self, setup: bytes, command: Sequence[str], what: str) -> None:
        self._setup, self._command, self._what = setup, command, what
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: Any = None
        self._unread = bytearray()
        self._waiting: deque[asyncio.Future[PromptReply | None]] = deque()
        self._answered = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._resting_until = 0.0
        self._connecting: asyncio.Task[None] | None = None
        self.ready = self.failed = self._closed = False

    async def ask(self, request: bytes) -> PromptReply | None:
        if self._transport is None:
            self.start()
        if self._transport is None or not self.ready or len(self._waiting) >= _MOST_WAITING:
            return None
        future: asyncio.Future[PromptReply | None] = self._loop.create_future()
        if not self._waiting:
            self._answered = self._loop.time()
        self._waiting.append(future)
        self._transport.write(_HEADER.pack(0, 0, len(request)) + request)
        return await future

    def start(self) -> None:
        if self.failed or self._closed or self._process is not None or self._loop.time() < self._resting_until:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [*self._command, str(number), str(os.getpid())], pass_fds=[number], stdin=subprocess.DEVNULL
            )
        ours.setblocking(False)
        self._connecting = self._loop.create_task(self._connect(ours))

    async def _connect(self, sock: socket.socket) -> None:
        await self._loop.create_connection(lambda: self, sock=sock)

    def close(self) -> None:
        self._closed = True
        self._end()

    def _end(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.ready = False
        self._unread.clear()
        self._resting_until = self._loop.time() + _PAUSE
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)

    def _look(self) -> None:
        """End a process that does not answer."""
        late = self._waiting and self._loop.time() - self._answered > _PATIENCE
        if late:
            _log.warning("the process that reads prompts of %s does not answer: it is started again", self._what)
            self._end()
            self.start()
        else:
            self._timer = self._loop.call_later(_PATIENCE / 2, self._look)

    # asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(_HEADER.pack(0, 0, len(self._setup)) + self._setup)
        self._timer = self._loop.call_later(_PATIENCE / 2, self._look)

    def data_received(self, data: bytes) -> None:
        unread = self._unread
        unread += data
        while len(unread) >= _HEADER.size:
            size = _HEADER.unpack_from(unread)[2]
            if len(unread) < _HEADER.size + size:
                return
            reply = _decode(bytes(unread[_HEADER.size : _HEADER.size + size]))
            del unread[: _HEADER.size + size]
            self._take(reply)

    def _take(self, reply: PromptReply) -> None:
        self._answered = self._loop.time()
        if reply.error:
            self.failed = True
            _log.warning(
                "the tokenizer of %s cannot be loaded (%s): its requests are placed by the beginnings of their texts, "
                "which is approximate; give its folder with --tokenizer",
                self._what,
                reply.error,
            )
        elif not self.ready:
            self.ready = True
        elif not (future := self._waiting.popleft()).done():
            future.set_result(reply)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._end()
