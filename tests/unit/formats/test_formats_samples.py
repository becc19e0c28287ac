"""Every family's samples: complete, cut anywhere, token by token, and with markers as special tokens."""

from __future__ import annotations

import re

import pytest
from format_samples import FULL, SAMPLES, Sample, check, collected, machine, parse, tokens_of

from headrace.formats.parser import Parser
from headrace.formats.tool_formats import TOOL_FORMATS

each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)


@each_sample
def test_complete_text(sample: Sample) -> None:
    check(sample, parse(sample, [sample.text]))


@each_sample
def test_every_split_at_two_positions(sample: Sample) -> None:
    text, of = sample.text, machine(sample)
    steps = range(len(text) + 1) if FULL else (1, 2, 5, 11, 31)
    for first in range(len(text) + 1):
        for second in {min(len(text), first + step) for step in steps}:
            check(sample, parse(sample, [text[:first], text[first:second], text[second:]], of))


@each_sample
def test_character_by_character(sample: Sample) -> None:
    check(sample, parse(sample, list(sample.text)))


@each_sample
def test_through_every_other_parser(sample: Sample) -> None:
    """No parser fails for another format's text, and none depends on where it is cut."""
    for tools in TOOL_FORMATS:
        for reasoning in (None, "harmony" if tools == "harmony" else "think"):
            other = Sample("", tools, reasoning, sample.text, complete=sample.complete, schemas=sample.schemas)
            of = machine(other)
            whole = parse(other, [sample.text], of)
            assert whole.raw == sample.text
            assert parse(other, list(sample.text), of) == whole
            for cut in range(1, len(sample.text), 1 if FULL else 37):
                assert parse(other, [sample.text[:cut], sample.text[cut:]], of) == whole


@each_sample
@pytest.mark.parametrize("size", [0, 1, 3])
def test_markers_as_special_tokens(sample: Sample, size: int) -> None:
    """`size`: characters of the text's pieces; 0 is all of it up to the next marker."""
    special = tokens_of(machine(sample))
    pattern = "|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)"
    parts = re.split(f"({pattern})", sample.text)
    pieces: list[str] = []
    for part in parts:
        step = len(part) if part in special or not size else size
        pieces += [part[at : at + step] for at in range(0, len(part), step or 1)]
    check(sample, parse(sample, pieces, machine(sample, special), special))


def test_text_that_quotes_a_special_token_is_content() -> None:
    sample = SAMPLES[0]
    of = machine(sample, ["<tool_call>", "</tool_call>"])
    assert parse(sample, [sample.text], of).content == sample.text
    assert parse(sample, ["<tool_call>", sample.text[11:]], of, ["<tool_call>"]).calls == sample.calls


@pytest.mark.parametrize(
    ("tools", "pieces", "call"),
    [
        (
            "glm47",
            ["<tool_call>", "f", "<arg_key>", "k", "</arg_key>", "<arg_value>", *("</arg_value>", "</tool_call>") * 2],
            ("f", '{"k": "</arg_value></tool_call>"}'),
        ),
        (
            "gemma4",
            ["<|tool_call>", "call:f{k:", '<|"|>', '<|"|>', ",n:1", '<|"|>', "}", "<tool_call|>"],
            ("f", '{"k": "<|\\"|>,n:1"}'),
        ),
        (
            "kimi_k3",
            [
                *("<|open|>", "tools", "<|sep|>", "<|open|>", 'call tool="f" index="1"', "<|sep|>", "<|open|>"),
                *(
                    'argument key="q" type="string"',
                    "<|sep|>",
                    "<|close|>argument<|sep|>",
                    "<|open|>",
                    "x",
                    "<|close|>",
                ),
                *("argument", "<|sep|>", "<|close|>", "call", "<|sep|>", "<|close|>", "tools", "<|sep|>"),
            ],
            ("f", '{"q": "<|close|>argument<|sep|><|open|>x"}'),
        ),
    ],
)
def test_arguments_that_quote_a_special_token(tools: str, pieces: list[str], call: tuple[str, str]) -> None:
    """The first time that a piece after the value's beginning spells an end, it is text."""
    sample = Sample("", tools, None, "")
    every = machine(sample)
    special = [piece for piece in set(pieces) if piece in every.markers | every.inline]
    parser = Parser(machine(sample, special))
    quoted = {"glm47": (6, 7), "gemma4": (3,), "kimi_k3": (9,)}[tools]
    events = []
    for at, piece in enumerate(pieces):
        events += parser.feed_marker(piece) if piece in special and at not in quoted else parser.feed(piece)
    answer = collected([*events, *parser.finish()])
    assert answer.raw == "".join(pieces)
    assert answer.calls == [call]


def test_a_token_within_a_string_of_python_is_text() -> None:
    pieces = ["<|python_start|>", '[f(a="x', "<|python_end|>", ' y", b=1)]', "<|python_end|>"]
    sample, special = Sample("", "pythonic", None, ""), pieces[::2]
    answer = parse(sample, pieces, machine(sample, special), special)
    assert answer.calls == [("f", '{"a": "x<|python_end|> y", "b": 1}')]


def test_a_token_ends_a_call_that_is_not_complete() -> None:
    sample = Sample("", "gemma4", None, "", calls=[("f", '{"n": 5}')])
    pieces = ["<|tool_call>", "call:f{n:5", "<tool_call|>", " Yes"]
    answer = parse(sample, pieces, machine(sample, pieces[::2]), pieces[::2])
    assert (answer.calls, answer.content) == (sample.calls, "Yes")


def test_arguments_come_as_the_model_writes_them() -> None:
    parser = Parser(machine(SAMPLES[0]))
    assert [event.text for event in parser.feed('<tool_call>{"name": "f", "arguments": {"a": "x') if event.text] == [
        "f",
        '{"a": "x',
    ]
    assert [event.text for event in parser.feed("yz") if event.text] == ["yz"]


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.calls and s.complete], ids=lambda sample: sample.name)
def test_truncated_anywhere_gives_a_prefix(sample: Sample) -> None:
    """A truncated answer never has another call than the complete one, and its arguments are a beginning of theirs."""
    of = machine(sample)
    for end in range(len(sample.text)):
        parser = Parser(of, sample.schemas, sample.opened)
        events = parser.feed(sample.text[:end]) + parser.finish(complete=False)
        assert "".join(event.raw for event in events) == sample.text[:end]
        names = [event.text for event in events if event.kind == "call"]
        assert names == [name for name, _ in sample.calls][: len(names)]
