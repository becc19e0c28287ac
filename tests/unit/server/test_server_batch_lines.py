"""The lines of a batch: their limits and places, and from a file to a file."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from server_fakes import ByteTokenizer, FakeClient
from test_server_batches import CHAT, jsonl, line

from headrace.config import Config
from headrace.errors import ConfigError
from headrace.server import batch_file, batch_lines
from headrace.server.batch_file import answer_file
from headrace.server.batch_lines import read_lines, request_of


def test_the_limits_of_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_lines, "MOST_LINES", 2)
    lines, errors = read_lines(io.BytesIO(jsonl(*(line(str(at)) for at in range(3)))), CHAT)
    assert (len(lines), errors[0].code, errors[0].line) == (2, "too_many_lines", 3)
    monkeypatch.setattr(batch_lines, "MAX_BODY", 50)
    _, errors = read_lines(io.BytesIO(jsonl(line("a"))), CHAT)
    assert errors[0].code == "line_too_long"
    lines, errors = read_lines(io.BytesIO(b"\n" * 3), CHAT)
    assert (lines, errors[0].code) == ([], "empty_file")


def test_blank_lines_and_offsets() -> None:
    content = b"\n" + jsonl(line("a")) + b"  \n" + jsonl(line("b", url="/v1/responses"))
    lines, errors = read_lines(io.BytesIO(content), None)
    assert not errors
    _, errors = read_lines(io.BytesIO(content + b"\n{\n"), None)
    assert [error.line for error in errors] == [6]
    assert [json.loads(content[one.start : one.start + one.size])["custom_id"] for one in lines] == ["a", "b"]
    odd = json.loads(request_of(json.dumps(line("x", priority="high")).encode())[1])
    assert odd["priority"] == "high"


def test_a_batch_from_a_file_to_a_file(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    content = jsonl(*(line(f"l{at}", max_tokens=2) for at in range(40)), line("bad", n=0))
    source.write_bytes(content)
    lines, _ = read_lines(io.BytesIO(content), None)
    target.write_bytes(b'{"custom_id": "l3"}\n{"custom_id": "l4')
    with pytest.raises(ConfigError, match="--resume"):
        batch_file._earlier(target, False)
    earlier = batch_file._earlier(target, True)
    assert earlier == {"l3"}
    engine = FakeClient()
    work = answer_file(engine, ByteTokenizer(), Config(), source, target, lines, earlier)
    totals = asyncio.run(work)
    assert (totals.earlier, totals.answered, totals.refused) == (1, 39, 1)
    written = [json.loads(one) for one in target.read_text().splitlines()]
    assert sorted(one["custom_id"] for one in written) == sorted(["bad", *(f"l{at}" for at in range(40))])
    assert batch_file._earlier(target, True) == {one["custom_id"] for one in written}
    assert batch_file._earlier(tmp_path / "new", False) == set()
    target.write_text("text\n")
    with pytest.raises(ConfigError, match="no output of a batch"):
        batch_file._earlier(target, True)
    source.write_text("{\n" * 7)
    with pytest.raises(ConfigError, match=r"in: line 1: .*; line 5: .*; and 2 more"):
        batch_file.run_batch(Config(), tmp_path, source, target, False)
