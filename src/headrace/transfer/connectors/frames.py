"""Frames on a stream socket: a kind, a checked body, and possibly a block's bytes behind it.

A frame starts with 16 bytes, little endian: magic `HRKT`, kind, three zero bytes, length of the body, CRC-32 of the
body. A frame of kind BLOCK is followed by a sealed block, whose size both ends know and whose seal checks it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import zlib
from collections.abc import Callable
from typing import TypeVar

import msgspec

from headrace.errors import TransferError
from headrace.transfer.identity import Identity, TransferRefused

__all__ = [
    "Ask",
    "Challenge",
    "Done",
    "FramedSocket",
    "Left",
    "Located",
    "Missing",
    "Proof",
    "Refusal",
    "Taken",
    "Welcome",
    "pack_identity",
    "unpack_identity",
]

_HEADER = struct.Struct("<4sB3xII")
_MAGIC = b"HRKT"
_LONGEST = 1 << 20
"""Bytes of a body. A peer that says more is not one of ours."""
_BLOCK = 255

Left = Callable[[], float]
"""Seconds until the deadline; raises TransferError after it."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """Base of the messages."""


class Challenge(Frame, frozen=True):
    """The server's first word."""

    nonce: bytes


class Proof(Frame, frozen=True):
    """The client's answer."""

    nonce: bytes
    identity: bytes
    digest: bytes


class Welcome(Frame, frozen=True):
    """The server's answer to a right proof. `memory` describes its shelf to a transport that reads it directly."""

    identity: bytes
    memory: bytes
    digest: bytes


class Refusal(Frame, frozen=True):
    """The server's last word."""

    reason: str


class Ask(Frame, frozen=True):
    """The client wants blocks, in this order."""

    hashes: tuple[bytes, ...]
    patience: float
    """Seconds for which the server may wait for each."""
    timeout: float
    """Seconds after which the client does not want them any more. Not a time of day: clocks differ."""


class Located(Frame, frozen=True):
    """The next blocks lie at these offsets of the server's shelf, and stay there until Taken."""

    offsets: tuple[int, ...]


class Taken(Frame, frozen=True):
    """The client has read what was located."""


class Missing(Frame, frozen=True):
    """The next block did not come: the answer to Ask ends."""


class Done(Frame, frozen=True):
    """All blocks have been sent."""


_KINDS: tuple[type[Frame], ...] = (Challenge, Proof, Welcome, Refusal, Ask, Located, Taken, Missing, Done)
_T = TypeVar("_T", bound=Frame)


class FramedSocket:
    """A connection to a peer. One thread uses it; any thread may `shut` it."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.socket, self.peer = sock, peer
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, frame: Frame, left: Left) -> None:
        body = msgspec.msgpack.encode(frame)
        header = _HEADER.pack(_MAGIC, _KINDS.index(type(frame)), len(body), zlib.crc32(body))
        self._send([memoryview(header + body)], left)

    def send_block(self, sealed: memoryview, left: Left) -> None:
        """Send a sealed block, without a copy of it."""
        self._send([memoryview(_HEADER.pack(_MAGIC, _BLOCK, 0, 0)), sealed], left)

    def receive(self, left: Left, into: memoryview | None = None) -> Frame | None:
        """The next message; None if it was a block, which lies in `into` then. Raises TransferError."""
        header = bytearray(_HEADER.size)
        self.fill(memoryview(header), left)
        magic, kind, length, checksum = _HEADER.unpack(header)
        if magic != _MAGIC:
            raise TransferError(f"{self.peer} does not speak this protocol: it sent {bytes(header[:4])!r}")
        if kind == _BLOCK and into is not None:
            self.fill(into, left)
            return None
        if kind >= len(_KINDS) or length > _LONGEST:
            raise TransferError(
                f"{self.peer} sent a message of kind {kind} and {length} bytes, which does not fit here"
            )
        body = bytearray(length)
        self.fill(memoryview(body), left)
        if zlib.crc32(body) != checksum:
            raise TransferError(f"a message from {self.peer} arrived damaged: its checksum is wrong")
        try:
            frame: Frame = msgspec.msgpack.decode(body, type=_KINDS[kind])
        except msgspec.DecodeError as error:
            raise TransferError(f"{self.peer} sent a message that cannot be read: {error}") from error
        return frame

    def expect(self, kind: type[_T], left: Left) -> _T:
        """The next message, which must be of this kind. A Refusal raises TransferRefused with its reason."""
        frame = self.receive(left)
        if isinstance(frame, Refusal):
            raise TransferRefused(frame.reason)
        if not isinstance(frame, kind):
            raise TransferError(f"{self.peer} sent {type(frame).__name__} where {kind.__name__} is due")
        return frame

    def fill(self, memory: memoryview, left: Left) -> None:
        """Receive exactly so many bytes."""
        at = 0
        while at < len(memory):
            self.socket.settimeout(left())
            try:
                count = self.socket.recv_into(memory[at:])
            except TimeoutError:
                continue  # `left` raises.
            if not count:
                raise TransferError(f"{self.peer} has closed the connection")
            at += count

    def shut(self) -> None:
        """Wake the thread that waits for the peer, from another thread."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()

    def _send(self, parts: list[memoryview], left: Left) -> None:
        while parts:
            self.socket.settimeout(left())
            try:
                sent = self.socket.sendmsg(parts)
            except TimeoutError:
                continue
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][sent:]


def pack_identity(identity: Identity) -> bytes:
    return msgspec.msgpack.encode(identity)


def unpack_identity(data: bytes, peer: str) -> Identity:
    """Raises TransferRefused."""
    try:
        return msgspec.msgpack.decode(data, type=Identity)
    except msgspec.DecodeError as error:
        raise TransferRefused(f"{peer} describes itself in another form than this version reads: {error}") from error
