"""Markers of reasoning and calls that come as special tokens, which the text may not show."""

from __future__ import annotations

import codecs
import re
from typing import Any

import pytest

from headrace.config import Config
from headrace.formats.machine import Machine
from headrace.formats.parser import Parser
from headrace.formats.reasoning_forms import REASONING_FORMATS
from headrace.formats.tool_formats import TOOL_FORMATS
from headrace.server.answer_reader import AnswerReader, ReadingOptions
from headrace.server.model_formats import ModelFormats, find_formats
from headrace.server.tool_use import after_reasoning, prompt_reasons
from headrace.types import Constraint


class Words:
    """A vocabulary of words; markers are special tokens that the text does not show."""

    response_template = None
    template_source = '{{ tools }}<tool_call>"arguments"</think>'
    words = (
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<end>",
        "so",
        '{"name": "f"}',
        " <tool_call> ",
        "Hi",
    )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.words.index(text)] if text in self.words else [5, 5]

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Any = ()) -> Words:
        return self

    unfinished = False

    def push(self, token: int) -> str:
        return "" if token < 5 else self.words[token]

    def flush(self) -> str:
        return ""


def words_formats() -> ModelFormats:
    return find_formats(Words(), Config().server)


@pytest.mark.parametrize("pieces", [1, 2, 3, 8])
def test_markers_come_by_id(pieces: int) -> None:
    """Text and ids arrive in any pieces, and text that spells a marker is content."""
    formats = words_formats()
    assert formats.with_tools is not None
    reader = AnswerReader(Parser(formats.with_tools), ReadingOptions(formats.markers), Words())
    tokens = [0, 5, 1, 7, 8, 2, 6, 3, 4]
    shown = []
    for at in range(0, len(tokens), pieces):
        part = tokens[at : at + pieces]
        last = at + pieces >= len(tokens)
        text = "".join(map(Words().push, part))
        shown += reader.read(text, part, "stop" if last else None, 4 if last else None)
    assert "".join(delta.reasoning for delta in shown if isinstance(delta.reasoning, str)) == "so"
    assert "".join(delta.content for delta in shown if isinstance(delta.content, str)) == "<tool_call> Hi"
    assert reader.calls == 1
    assert reader.reasoning_tokens == 3
    assert reader.finish_reason("stop") == "tool_calls"
    assert reader.finish_reason("length") == "length"


class Bytes(Words):
    """A vocabulary of bytes behind the markers."""

    def __init__(self, skip: bool) -> None:
        self._decoder, self._skip = codecs.getincrementaldecoder("utf-8")("replace"), skip

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Any = ()) -> Bytes:
        return Bytes(skip_special_tokens)

    @property
    def unfinished(self) -> bool:  # type: ignore[override]
        return bool(self._decoder.getstate()[0])

    def push(self, token: int) -> str:
        if token >= 5:
            return self._decoder.decode(bytes([token - 5]))
        return "" if self._skip else self._decoder.decode(self.words[token].encode())

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


def in_bytes(text: bytes) -> list[int]:
    return [byte + 5 for byte in text]


@pytest.mark.parametrize("skip", [True, False], ids=["markers hidden", "markers shown"])
@pytest.mark.parametrize("pieces", [1, 2, 3, 64])
@pytest.mark.parametrize(
    ("tokens", "thought", "content", "calls"),
    [
        ([0, *in_bytes(b"h\xe2"), 1, *in_bytes(b"Hi")], "h\ufffd", "Hi", 0),
        ([0, *in_bytes(b"h"), 1, *in_bytes(b"a\xf0\x9f"), 2, *in_bytes(b'{"name": "f"}'), 3], "h", "a\ufffd", 1),
        ([0, *in_bytes(b"h\xe2"), 1], "h\ufffd", "", 0),
        ([0, *in_bytes(b"h\xe2"), 1, 2, *in_bytes(b'{"name": "f"}'), 3], "h\ufffd", "", 1),
    ],
)
def test_bytes_that_are_no_character_stay_before_a_marker(
    tokens: list[int], thought: str, content: str, calls: int, pieces: int, skip: bool
) -> None:
    formats = words_formats()
    assert formats.with_tools is not None
    options = ReadingOptions(formats.markers, skip_special_tokens=skip)
    reader, stream = AnswerReader(Parser(formats.with_tools), options, Bytes(skip)), Bytes(skip)
    shown = []
    for at in range(0, len(tokens), pieces):
        part = tokens[at : at + pieces]
        last = at + pieces >= len(tokens)
        text = "".join(map(stream.push, part)) + (stream.flush() if last else "")
        shown += reader.read(text, part, "length" if last else None, None)
    assert "".join(delta.reasoning for delta in shown if isinstance(delta.reasoning, str)) == thought
    assert "".join(delta.content for delta in shown if isinstance(delta.content, str)) == content
    assert reader.calls == calls


def test_text_that_waits_for_a_stop_string_keeps_its_place() -> None:
    formats = words_formats()
    assert formats.without_tools is not None
    reader = AnswerReader(Parser(formats.without_tools), ReadingOptions(formats.markers), Words())
    assert reader.read("", [0, 5], None, None) == []
    first = reader.read("so", [1, 8], None, None)
    last = reader.read("H", [], "stop", "i")
    assert [delta.reasoning for delta in first] == ["so"]
    assert [delta.content for delta in last] == ["H"]


def test_made_up_ids_of_mistral_have_nine_characters() -> None:
    machine = Machine(TOOL_FORMATS["mistral_v13"], None)
    reader = AnswerReader(Parser(machine), ReadingOptions({}, short_ids=True), Words())
    (call, *_) = reader.read('[TOOL_CALLS]f[ARGS]{"a": 1}', [1], "stop", 4)
    assert isinstance(call.tool_calls, list)
    assert re.fullmatch("[0-9a-f]{9}", str(call.tool_calls[0].id))


def test_a_constraint_waits_for_the_reasoning() -> None:
    formats = words_formats()
    plain = Constraint("json_object")
    assert prompt_reasons(formats, "…<think>\n", None) is True
    assert prompt_reasons(formats, "…<think>\n\n</think>\n\n", None) is False
    assert prompt_reasons(formats, "…assistant\n", None) is None
    assert prompt_reasons(formats, "…", "<think>so far") is True
    assert after_reasoning(plain, formats, False) is plain
    assert after_reasoning(plain, formats, True) == Constraint("json_object", after=(1,))
    assert after_reasoning(plain, formats, None) == Constraint("json_object", after=(1,), opens=(0,))
    assert after_reasoning(plain, ModelFormats(reasoning=REASONING_FORMATS["think"]), None) is plain
