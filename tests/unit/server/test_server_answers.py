"""Answers in every tool format: what the client gets, and why the answer ended."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config import Config
from headrace.formats.machine import Machine
from headrace.formats.parser import Parser
from headrace.formats.reasoning_forms import REASONING_FORMATS
from headrace.formats.states import CallForm
from headrace.formats.tool_formats import TOOL_FORMATS
from headrace.server.answer_reader import AnswerReader, ReadingOptions
from headrace.server.model_formats import ModelFormats, find_formats
from headrace.server.replies import ChatDelta
from headrace.server.tool_use import after_reasoning, prompt_reasons
from headrace.types import Constraint

IDS = {"mistral_v3": "abc123XYZ", "mistral_v11": "abc123XYZ", "kimi_k2": "functions.{}:7"}
IDS |= {"cohere_json": "7", "cohere_xml": "7"}
each_format = pytest.mark.parametrize("name", [name for name, found in TOOL_FORMATS.items() if found.form])


def form_of(name: str) -> CallForm:
    found = TOOL_FORMATS[name].form
    assert found is not None
    return found


def call(name: str, function: str) -> str:
    """A call without arguments."""
    values = {CallForm.NAME: function, CallForm.ARGUMENTS: "{}", CallForm.PARAMETERS: ""}
    values |= {CallForm.ID9: "abc123XYZ", CallForm.INDEX: "7"}
    return "".join(values.get(part, part) for part in form_of(name).call)


def two_calls(name: str) -> str:
    form = form_of(name)
    between = "<|start|>assistant" if name == "harmony" else form.between
    return form.begin + call(name, "f") + between + call(name, "g") + form.end


def reader(name: str, **options: Any) -> AnswerReader:
    reasoning = REASONING_FORMATS["harmony"] if name == "harmony" else None
    return AnswerReader(Parser(Machine(TOOL_FORMATS[name], reasoning)), ReadingOptions({}, **options), Tokens())


def calls(deltas: list[ChatDelta]) -> list[tuple[str, str, str]]:
    """(name, id, arguments) of each call."""
    found: dict[int, list[str]] = {}
    for delta in deltas:
        for one in delta.tool_calls if isinstance(delta.tool_calls, list) else ():
            name = one.function.name
            if isinstance(name, str):
                found[one.index] = [name, str(one.id), ""]
            found[one.index][2] += one.function.arguments
    return [(name, call_id, arguments) for name, call_id, arguments in found.values()]


@each_format
def test_two_calls_without_arguments(name: str) -> None:
    answer = reader(name)
    found = calls(answer.read(two_calls(name), [1], "stop", 4))
    assert [(one[0], one[2]) for one in found] == [("f", "{}"), ("g", "{}")]
    if name in IDS:
        assert [one[1] for one in found] == [IDS[name].format("f"), IDS[name].format("g")]
    else:
        assert all(one[1].startswith("call_") for one in found)
    assert answer.finish_reason("stop") == "tool_calls"
    assert answer.finish_reason("length") == "length"


@each_format
def test_one_call_at_most(name: str) -> None:
    answer = reader(name, single=True)
    found = calls(answer.read(two_calls(name), [1], "stop", 4))
    assert [(one[0], one[2]) for one in found] == [("f", "{}")]
    assert answer.finish_reason("stop") == "tool_calls"


@each_format
def test_a_truncated_answer_has_the_calls_that_have_begun(name: str) -> None:
    text = two_calls(name)
    for end in range(len(text)):
        answer = reader(name)
        found = calls(answer.read(text[:end], [1], "length", None))
        assert [one[0] for one in found] == ["f", "g"][: len(found)]
        assert answer.finish_reason("length") == "length"


class Tokens:
    """A vocabulary with the special tokens of Kimi K3, which the text does not show."""

    response_template = None
    template_source = '{{ tools }}{{ "<|open|>" }}'
    words = (
        *("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
        *("think", "response", "tools", "call", "argument", "message"),
        *('call tool="f" index="1"', 'argument key="a" type="number"', "1", "Hi", "<|open|>tools<|sep|>"),
    )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.words.index(text)] if text in self.words[:-1] else [5, 5]

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Any = ()) -> Tokens:
        return self

    unfinished = False

    def push(self, token: int) -> str:
        return "" if token < 4 else self.words[token]

    def flush(self) -> str:
        return ""


def kimi() -> ModelFormats:
    return find_formats(Tokens(), Config().server)


@pytest.mark.parametrize("pieces", [1, 2, 3, 40])
def test_markers_of_several_tokens(pieces: int) -> None:
    """Text that spells the beginning of a call is content."""
    formats = kimi()
    assert formats.tools is TOOL_FORMATS["kimi_k3"]
    assert formats.with_tools is not None
    answer = AnswerReader(Parser(formats.with_tools, reasoning=True), ReadingOptions(formats.markers), Tokens())
    tokens = [13, 1, 4, 2, 0, 5, 2, 13, 14, 1, 5, 2]
    tokens += [0, 6, 2, 0, 10, 2, 0, 11, 2, 12, 1, 8, 2, 1, 7, 2, 1, 6, 2, 1, 9, 2, 3]
    shown = []
    for at in range(0, len(tokens), pieces):
        part = tokens[at : at + pieces]
        last = at + pieces >= len(tokens)
        shown += answer.read("".join(map(Tokens().push, part)), part, "stop" if last else None, 3 if last else None)
    assert "".join(delta.reasoning for delta in shown if isinstance(delta.reasoning, str)) == "Hi"
    assert "".join(delta.content for delta in shown if isinstance(delta.content, str)) == "Hi<|open|>tools<|sep|>"
    assert [(one[0], one[2]) for one in calls(shown)] == [("f", '{"a": 1}')]
    assert answer.finish_reason("stop") == "tool_calls"


def test_a_declaration_comes_before_the_vocabulary(caplog: pytest.LogCaptureFixture) -> None:
    class Declared(Tokens):
        response_template: Any = None

    tokenizer, server = Declared(), Config().server
    tokenizer.response_template = {
        "fields": {
            "tool_calls": {"open": "<do>", "content": "json", "transform": {"function": "{content}"}},
            "thinking": {"open": "[THINK]", "close": "[/THINK]"},
        }
    }
    found = find_formats(tokenizer, server)
    assert found.tools is not None
    assert dict(found.tools.opens) == {"<do>": "body"}
    assert found.reasoning is REASONING_FORMATS["mistral"]
    chosen = find_formats(tokenizer, server.model_copy(update={"tool_format": "hermes", "reasoning_format": "none"}))
    assert (chosen.tools, chosen.reasoning) == (TOOL_FORMATS["hermes"], None)
    assert not caplog.records
    tokenizer.response_template = {"fields": {"tool_calls": {"open": "<do>"}, "notes": {}}}
    found = find_formats(tokenizer, server)
    assert (found.tools, found.reasoning) == (TOOL_FORMATS["kimi_k3"], REASONING_FORMATS["kimi_k3"])
    (record,) = caplog.records
    assert "response_template" in record.getMessage()
    assert "`tool_calls` (" in record.getMessage()
    assert "`notes` (" in record.getMessage()


def test_a_constraint_waits_for_a_marker_of_several_tokens() -> None:
    formats, plain = kimi(), Constraint("json_object")
    assert prompt_reasons(formats, "…<|open|>think<|sep|>", None) is True
    assert prompt_reasons(formats, "…<|open|>response<|sep|>", None) is False
    assert after_reasoning(plain, formats, True) == Constraint("json_object", after=(2,))
    assert after_reasoning(plain, formats, False) is plain
