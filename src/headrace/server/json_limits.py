"""Limits the number of parts and values of a JSON body before it is parsed.

The parser is fast per byte, but each list, object and key costs a hundred times as much as a byte, and the parser
blocks the event loop: 16 MiB of empty lists take seconds. Counting takes milliseconds, in slices between which the
event loop runs other tasks.
"""

from __future__ import annotations

import asyncio

from headrace.errors import InvalidRequest

__all__ = ["SMALL", "check_json_limits"]

SMALL = 64 * 2**10
"""Bytes. A body up to this size is parsed without counting: it cannot hold much."""
_SLICE = 128 * 2**10


async def check_json_limits(body: bytes, most_parts: int, most_values: int) -> None:
    """Raise InvalidRequest for more than `most_parts` lists, objects and keys, or more than `most_values` values in
    lists."""
    if len(body) <= SMALL:
        return
    parts = values = at = 0
    in_string = False
    while at < len(body):
        piece = _slice(body, at)
        at += len(piece)
        outside, in_string = _outside_strings(piece, in_string)
        parts += outside.count(b"[") + outside.count(b"{") + outside.count(b":")
        values += outside.count(b",")
        if parts > most_parts:
            raise _too_many("lists, objects and keys", most_parts)
        if values > most_values:
            raise _too_many("values", most_values)
        await asyncio.sleep(0)


def _too_many(what: str, most: int) -> InvalidRequest:
    return InvalidRequest(f"the body holds more than the {most} {what} that are accepted", code="too_many_values")


def _slice(body: bytes, at: int) -> bytes:
    """The next bytes; one more if the end would separate a backslash from the character that it escapes."""
    piece = body[at : at + _SLICE]
    backslashes = len(piece) - len(piece.rstrip(b"\\"))
    return body[at : at + _SLICE + 1] if backslashes % 2 else piece


def _outside_strings(piece: bytes, in_string: bool) -> tuple[bytes, bool]:
    """(The bytes outside strings, whether the piece ends inside a string)."""
    if b"\\" in piece:
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = piece.split(b'"')
    return b"".join(parts[in_string::2]), in_string ^ (len(parts) % 2 == 0)
