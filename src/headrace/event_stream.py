"""Reads server-sent events in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["event_data"]


def event_data(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The data of each event, up to `[DONE]`. Only a line feed ends a line: JSON may hold other line separators."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield data
