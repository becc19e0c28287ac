"""Frames between the process that renders chat templates and its client. Standard library only."""

from __future__ import annotations

import socket
import struct

__all__ = ["FAULT", "MAX_TEXT", "REFUSAL", "TEXT", "Frame", "read_frame", "send_frame"]

Frame = tuple[int, bool, bytes]
"""(kind, whether the sender ends after it, content)."""

TEXT, REFUSAL, FAULT = range(3)
"""Kinds of an answer: a rendered text, the message of a `raise_exception`, the reason of any other failure."""
MAX_TEXT = 1 << 23
"""Characters of a rendered text."""

_HEADER = struct.Struct("<BBQ")
_MAX_FRAME = 1 << 28
"""Bytes; a longer frame is never sent by either side."""


def send_frame(link: socket.socket, content: bytes, kind: int = TEXT, last: bool = False) -> None:
    """Send one frame. Raises OSError if the other end closed the link or, on a socket with a timeout, is too slow."""
    link.sendall(_HEADER.pack(kind, last, len(content)) + content)


def read_frame(link: socket.socket) -> Frame | None:
    """Receive one frame; None at the end of the stream. Raises OSError as `send_frame` does."""
    header = _read(link, _HEADER.size)
    if header is None:
        return None
    kind, last, size = _HEADER.unpack(header)
    if size > _MAX_FRAME:
        raise OSError(f"a frame of {size} bytes: at most {_MAX_FRAME} are expected")
    content = _read(link, size)
    return None if content is None else (kind, bool(last), content)


def _read(link: socket.socket, size: int) -> bytes | None:
    """Exactly `size` bytes; None if the stream ends before."""
    pieces = bytearray()
    while len(pieces) < size:
        piece = link.recv(min(size - len(pieces), 1 << 18))
        if not piece:
            return None
        pieces += piece
    return bytes(pieces)
