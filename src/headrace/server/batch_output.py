"""The answers of a batch's lines, and the files that they end in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from headrace.server.batch_schemas import BatchObject, FileObject
from headrace.server.batch_store import Answer, BatchStore
from headrace.server.internal_call import InternalReply
from headrace.server.request_ids import new_request_id

__all__ = ["UsageSum", "answer_of", "output_line", "write_results"]

_REASONS = {
    "batch_expired": "this line was not begun before the batch expired",
    "batch_cancelled": "this line was not finished before the batch was cancelled",
}


class _Reply(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Failure(msgspec.Struct):
    code: str
    message: str


class _OutputLine(msgspec.Struct):
    id: str
    custom_id: str
    response: _Reply | None
    error: _Failure | None


def answer_of(reply: InternalReply) -> bytes:
    """The part `response` of an output's line."""
    request_id = reply.headers.get(b"x-request-id", b"").decode("latin-1") or new_request_id("req")
    return msgspec.json.encode(_Reply(reply.status, request_id, msgspec.Raw(reply.body)))


def output_line(answer: Answer) -> bytes:
    name = new_request_id("batch_req").replace("-", "_")
    if answer.status == 0:
        code = answer.answer.decode()
        line = _OutputLine(name, answer.custom_id, None, _Failure(code, _REASONS[code]))
    else:
        line = _OutputLine(name, answer.custom_id, msgspec.json.decode(answer.answer, type=_Reply), None)
    return msgspec.json.encode(line) + b"\n"


class UsageSum:
    """The usage of all answers together, in the form of responses."""

    def __init__(self) -> None:
        self._prompt = self._output = self._cached = self._reasoning = 0

    def add(self, answer: Answer) -> None:
        if not 200 <= answer.status < 300:
            return
        usage = msgspec.json.decode(msgspec.json.decode(answer.answer, type=_Reply).body).get("usage") or {}
        for prompt, output in (("prompt", "completion"), ("input", "output")):
            self._prompt += usage.get(f"{prompt}_tokens") or 0
            self._output += usage.get(f"{output}_tokens") or 0
            self._cached += _detail(usage, f"{prompt}_tokens_details", "cached_tokens")
            self._reasoning += _detail(usage, f"{output}_tokens_details", "reasoning_tokens")

    def total(self) -> dict[str, Any]:
        return {
            "input_tokens": self._prompt,
            "input_tokens_details": {"cached_tokens": self._cached},
            "output_tokens": self._output,
            "output_tokens_details": {"reasoning_tokens": self._reasoning},
            "total_tokens": self._prompt + self._output,
        }


def _detail(usage: Mapping[str, Any], part: str, name: str) -> int:
    found: int = (usage.get(part) or {}).get(name) or 0
    return found


def write_results(store: BatchStore, batch: BatchObject, now: int) -> None:
    """Write the files of a batch whose lines all have an answer, and end it. If the process ends before the last
    transaction, the files are swept and written again. Any thread."""
    usage = UsageSum()
    (good, good_path), (bad, bad_path) = store.new_file(), store.new_file()
    with good_path.open("wb") as outputs, bad_path.open("wb") as errors:
        for answer in store.answers(batch.id):
            usage.add(answer)
            (outputs if 1 <= answer.status < 400 else errors).write(output_line(answer))
        _sync(outputs)
        _sync(errors)
    files = []
    fields: dict[str, Any] = {"usage": usage.total()}
    for field, file_id, path in (("output_file_id", good, good_path), ("error_file_id", bad, bad_path)):
        made = _file(batch, file_id, path, f"{batch.id}_{field.partition('_')[0]}.jsonl", now)
        if made is not None:
            files.append(made)
            fields[field] = file_id
    state = "cancelled" if batch.status == "cancelling" else "completed" if batch.expired_at is None else "expired"
    if state != "expired":
        fields[f"{state}_at"] = now
    store.end(batch.id, state, files, **fields)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _file(batch: BatchObject, file_id: str, path: Path, name: str, now: int) -> FileObject | None:
    """None, and no file, if there is nothing in it."""
    size = path.stat().st_size
    if not size:
        path.unlink()
        return None
    expires = None if batch.output_seconds is None else now + batch.output_seconds
    return FileObject(file_id, size, now, name, "batch_output", expires_at=expires)
