"""A native transfer library in a process of its own: `python -m headrace.transfer.connectors.library_process`.

The engine's side sends a request for each attach and read, numbered; the process answers each, in any order. One thread
of the process makes all calls of the library. The process ends with the engine, and with a request that hangs.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import mmap
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from headrace.errors import ConfigError, HeadraceError, TransferError

__all__ = ["Library", "LibraryProcess"]

_log = logging.getLogger(__name__)

START = 180.0
"""Seconds that a library has to load."""
FENCE = 2.0
"""Seconds after a ticket's deadline for which a read that cannot be stopped is waited for, before its process ends."""
_POLL = 0.0002
"""Seconds between two looks at reads that are under way."""

Left = Callable[[], float]


class Library(Protocol):
    """A native library. One thread calls everything. Any exception is a failed transfer."""

    def open(self, host: str, shelf: memoryview, staging: memoryview, slot_bytes: int) -> bytes:
        """Make both memories reachable. Returns what another process needs to read the shelf."""

    def attach(self, description: bytes) -> Any:
        """Reach another process's shelf; returns a handle of it."""

    def start(self, peer: Any, there: Sequence[int], here: Sequence[int]) -> Any:
        """Begin to read slots of a shelf at these offsets into the staging memory; returns a handle of the read."""

    def done(self, read: Any) -> bool:
        """True if a read has ended. Raises if it has failed."""


class Start(msgspec.Struct, frozen=True, array_like=True):
    library: str
    host: str
    slot_bytes: int
    shelf: int
    staging: int


class Request(msgspec.Struct, frozen=True, array_like=True):
    """To attach to `description`; or, if `there` is not empty, to read."""

    number: int
    description: bytes
    there: list[int] = []
    here: list[int] = []


class Answer(msgspec.Struct, frozen=True, array_like=True):
    number: int
    error: str = ""
    data: bytes = b""


class LibraryProcess:
    """The engine's side. Any thread may call it."""

    def __init__(self, library: str, host: str, slot_bytes: int, files: tuple[int, int]) -> None:
        """`files`: of the shelf's and the staging memory. Raises ConfigError if the library cannot be loaded."""
        ours, theirs = socket.socketpair()
        self._socket = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # Where libraries may write what they like.
                pass_fds=(theirs.fileno(), *files),
            )
        self._lock = threading.Condition()
        self._answers: dict[int, Answer] = {}
        self._waiting: set[int] = set()
        self._last = 0
        self._ended = False
        threading.Thread(target=self._read_answers, name="library-answers", daemon=True).start()
        self._send(Start(library, host, slot_bytes, *files))
        end = time.monotonic() + START
        try:
            self.description = self._answer(0, lambda: end - time.monotonic(), 0.0).data
        except TransferError as error:
            self.kill()
            raise ConfigError(f"the connector's library cannot be used: {error}") from error

    def alive(self) -> bool:
        return not self._ended

    def attach(self, description: bytes, left: Left) -> bytes:
        """Let the library reach another shelf. Returns what `read` calls it. Raises TransferError."""
        self._call(description, [], [], left)
        return description

    def read(self, peer: bytes, there: list[int], here: list[int], left: Left) -> None:
        """Read slots at offsets `there` of a shelf to offsets `here` of the staging memory. Raises TransferError; after
        that the library does not write there any more."""
        self._call(peer, there, here, left)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def _call(self, description: bytes, there: list[int], here: list[int], left: Left) -> None:
        with self._lock:
            self._last += 1
            number = self._last
            self._waiting.add(number)
        self._send(Request(number, description, there, here))
        self._answer(number, left, FENCE)

    def _send(self, message: Start | Request) -> None:
        body = msgspec.msgpack.encode(message)
        try:
            with self._lock:
                self._socket.sendall(len(body).to_bytes(4, "little") + body)
        except OSError as error:
            raise TransferError(f"the library's process has ended: {error}") from error

    def _answer(self, number: int, left: Left, fence: float) -> Answer:
        """Wait for an answer. If it does not come, the process ends: it may still write where others read."""
        late = 0.0
        with self._lock:
            while number not in self._answers:
                if self._ended:
                    raise TransferError("the library's process has ended: the transfer is lost")
                try:
                    self._lock.wait(max(0.001, min(left(), 0.5)))
                    over = left() <= 0
                except TransferError:
                    over = True
                if over:
                    late = late or time.monotonic() + fence
                    self._lock.wait(max(0.0, min(late - time.monotonic(), 0.1)))
                    if time.monotonic() >= late and number not in self._answers:
                        break
            answer = self._answers.pop(number, None)
        if answer is None:
            _log.warning("the library's process does not answer: it is ended")
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # an end that the kernel delays
                self._process.wait(FENCE)
            # The end of its answers may be seen later; what comes next starts another process.
            self._ended = True
            raise TransferError("the library did not answer in time")
        if answer.error:
            raise TransferError(answer.error)
        return answer

    def _read_answers(self) -> None:
        try:
            while True:
                answer = msgspec.msgpack.decode(_receive(self._socket), type=Answer)
                with self._lock:
                    self._answers[answer.number] = answer
                    self._lock.notify_all()
        except (OSError, EOFError, msgspec.DecodeError):
            with self._lock:
                self._ended = True
                self._lock.notify_all()
        self._process.kill()
        self._process.wait()


def _receive(sock: socket.socket) -> bytes:
    """The next message. Raises EOFError at the end."""
    body = _exactly(sock, int.from_bytes(_exactly(sock, 4), "little"))
    return body


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _mapped(file: int) -> memoryview:
    return memoryview(mmap.mmap(file, os.fstat(file).st_size))


def main(arguments: list[str]) -> None:
    sock = socket.socket(fileno=int(arguments[0]))
    start = msgspec.msgpack.decode(_receive(sock), type=Start)

    def answer(number: int, error: str = "", data: bytes = b"") -> None:
        body = msgspec.msgpack.encode(Answer(number, error, data))
        sock.sendall(len(body).to_bytes(4, "little") + body)

    try:
        module, _, name = start.library.partition(":")
        library: Library = getattr(importlib.import_module(module), name)()
        description = library.open(start.host, _mapped(start.shelf), _mapped(start.staging), start.slot_bytes)
    except Exception as error:
        answer(0, _said(error))
        return
    answer(0, "", description)
    _loop(sock, library, answer)


def _loop(sock: socket.socket, library: Library, answer: Callable[..., None]) -> None:
    peers: dict[bytes, Any] = {}
    under_way: list[tuple[Request, Any]] = []
    while True:
        ready, _, _ = select.select([sock], [], [], _POLL if under_way else None)
        if ready:
            request = msgspec.msgpack.decode(_receive(sock), type=Request)
            try:
                if request.description not in peers:
                    peers[request.description] = library.attach(request.description)
                if request.there:
                    read = library.start(peers[request.description], request.there, request.here)
                    under_way.append((request, read))
                else:
                    answer(request.number)
            except Exception as error:
                peers.pop(request.description, None)
                answer(request.number, _said(error))
        for one in list(under_way):
            request, read = one
            try:
                if library.done(read):
                    under_way.remove(one)
                    answer(request.number)
            except Exception as error:
                under_way.remove(one)
                peers.pop(request.description, None)
                answer(request.number, _said(error))


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    with contextlib.suppress(EOFError, OSError):  # The engine has ended.
        main(sys.argv[1:])
    # Threads of the library must not keep the process alive.
    os._exit(0)
