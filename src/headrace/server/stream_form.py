"""Frames of a stream: server-sent events, plain (OpenAI) or with names (Anthropic, Responses), and lines of JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headrace.server.error_forms import Family, error_bytes
from headrace.server.heartbeat import COMMENT
from headrace.server.http_errors import HttpError, error_body

__all__ = ["DONE", "LINES", "MESSAGES", "OPENAI", "RESPONSES", "StreamForm", "event", "named_event"]

DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()
_LINE_ENDS = tuple((char.encode(), b"\\u%04x" % ord(char)) for char in "\u2028\u2029\u0085")
"""Characters that many clients read as the end of a line, and so of an event, although only CR and LF are. JSON escapes
all others itself."""
_EVENTS = b"text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class StreamForm:
    family: Family
    media: bytes
    comment: bytes | None
    """Sent while a stream is idle. None: the form has nothing that a client skips."""
    error: Callable[[HttpError], bytes]
    """The last bytes of a stream that fails."""
    done: bytes = b""
    """The last bytes of a stream that does not fail."""


def event(data: object) -> bytes:
    return b"data: " + _one_line(_encoder.encode(data)) + b"\n\n"


def named_event(name: str, data: object) -> bytes:
    return b"event: " + name.encode() + b"\n" + event(data)


def _one_line(encoded: bytes) -> bytes:
    if not encoded.isascii():
        for raw, escaped in _LINE_ENDS:
            encoded = encoded.replace(raw, escaped)
    return encoded


def _anthropic_error(error: HttpError) -> bytes:
    return b"event: error\ndata: " + _one_line(error_bytes(error, "anthropic")) + b"\n\n"


def _ollama_error(error: HttpError) -> bytes:
    return error_bytes(error, "ollama") + b"\n"


OPENAI = StreamForm("openai", _EVENTS, COMMENT, lambda error: event(error_body(error)) + DONE, DONE)
MESSAGES = StreamForm("anthropic", _EVENTS, named_event("ping", {"type": "ping"}), _anthropic_error)
RESPONSES = StreamForm("openai", _EVENTS, COMMENT, lambda error: event(error_body(error)))
LINES = StreamForm("ollama", b"application/x-ndjson", None, _ollama_error)
