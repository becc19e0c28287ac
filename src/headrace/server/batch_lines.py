"""The lines of a batch's input: checked, and made into requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from headrace.server.batch_schemas import BATCH_ENDPOINTS, BatchError
from headrace.server.batch_store import Line
from headrace.server.request_body import MAX_BODY

__all__ = ["MOST_LINES", "check_lines", "named_model", "read_lines", "request_of"]

MOST_LINES = 50_000
_MOST_ERRORS = 100
_LOW_PRIORITY = 2**20
"""Added to a line's priority, so that requests of people run first."""


class _Written(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: dict[str, msgspec.Raw]


_decode = msgspec.json.Decoder(_Written).decode


def check_lines(path: Path, endpoint: str) -> tuple[list[Line], list[BatchError]]:
    """(The lines, the first errors). Any thread."""
    with path.open("rb") as source:
        return read_lines(source, endpoint)


def read_lines(source: BinaryIO, endpoint: str | None) -> tuple[list[Line], list[BatchError]]:
    """As `check_lines`; without an `endpoint` each line may have its own."""
    lines: list[Line] = []
    errors: list[BatchError] = []
    seen: set[str] = set()
    for number, start, line in _raw_lines(source):
        if len(lines) == MOST_LINES:
            errors.append(BatchError("too_many_lines", f"more than {MOST_LINES} lines", number))
            break
        found = _checked(line, endpoint, seen, number)
        if isinstance(found, BatchError):
            errors.append(found)
            if len(errors) == _MOST_ERRORS:
                break
        else:
            seen.add(found)
            lines.append(Line(len(lines), found, start, len(line)))
    if not lines and not errors:
        errors.append(BatchError("empty_file", "the file has no lines"))
    return lines, errors


def named_model(path: Path) -> str | None:
    """The model that the first line names; None if it names none. Any thread."""
    with path.open("rb") as source:
        _, _, line = next(_raw_lines(source), (0, 0, b""))
    try:
        return msgspec.json.decode(_decode(line).body["model"], type=str)
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError, RecursionError):
        return None


def _raw_lines(source: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """(Number in the file, offset, bytes) of each line that is not blank; at most one byte more of a line than a body
    may have."""
    number, start = 1, 0
    while line := source.readline(MAX_BODY + 1):
        if line.strip():
            yield number, start, line
        start += len(line)
        number += line.endswith(b"\n")


def _checked(line: bytes, endpoint: str | None, seen: set[str], number: int) -> str | BatchError:
    """The line's own id."""
    if len(line) > MAX_BODY:
        return BatchError("line_too_long", f"a line may have {MAX_BODY} bytes", number)
    try:
        written = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return BatchError("invalid_json_line", str(error), number)
    streams = bytes(written.body.get("stream", b"null")) not in (b"null", b"false")
    urls = BATCH_ENDPOINTS if endpoint is None else (endpoint,)
    for wrong, code, message, param in (
        (written.custom_id in seen, "duplicate_custom_id", f"{written.custom_id!r:.100} is there twice", "custom_id"),
        (written.method != "POST", "invalid_method", "`method` must be POST", "method"),
        (written.url not in urls, "invalid_url", f"`url` must be {' or '.join(urls)}", "url"),
        (streams, "invalid_body", "`stream` is not for batches", "body.stream"),
    ):
        if wrong:
            return BatchError(code, message, number, param)
    return written.custom_id


def request_of(line: bytes) -> tuple[str, bytes]:
    """(The path, the body) of a line that has been checked, at the lowest priority."""
    written = _decode(line)
    body: dict[str, Any] = dict(written.body)
    if written.url == "/v1/responses":
        extras = dict(msgspec.json.decode(written.body.get("headrace", b"null")) or {})
        body["headrace"] = {**extras, "priority": _low(extras.get("priority"))}
        body["store"] = False
    else:
        body["priority"] = _low(msgspec.json.decode(written.body.get("priority", b"null")))
    return written.url, msgspec.json.encode(body)


def _low(given: Any) -> Any:
    """Of another type than a number: as it is, for the error that names it."""
    if given is None:
        return _LOW_PRIORITY
    return max(-_LOW_PRIORITY, min(given, _LOW_PRIORITY)) + _LOW_PRIORITY if isinstance(given, int) else given
