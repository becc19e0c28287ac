"""Random texts through every format: nothing is lost, nothing fails, and time is linear."""

from __future__ import annotations

import random

import pytest
from counted_lines import counted
from format_samples import FULL, SAMPLES, Answer, Sample, collected, machine, tokens_of

from headrace.formats.machine import Machine
from headrace.formats.parser import Parser
from headrace.formats.reasoning_forms import REASONING_FORMATS
from headrace.formats.tool_formats import TOOL_FORMATS

PAIRS = sorted(
    {(sample.tools, sample.reasoning) for sample in SAMPLES}
    | {(name, "harmony" if name == "harmony" else None) for name in TOOL_FORMATS}
    | {(None, name) for name in REASONING_FORMATS},
    key=str,
)


def texts(tools: str | None, reasoning: str | None) -> int:
    """Texts for this pair, so that each tool format, and each reasoning format without tools, reads 10^5."""
    if not FULL:
        return 200
    same = [pair for pair in PAIRS if pair[0] == tools] if tools else [(tools, reasoning)]
    return -(-100_000 // len(same))


SCHEMAS = {"f": {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}}
GLUE = ["{", "}", "[", "]", '"', "\\", ",", ":", "=", "(", ")", ">", "\n", " ", "x", "name", "1", "é", "'", "/", "`"]


def words(of: Machine) -> list[str]:
    """Pieces of the format's own texts."""
    own = sorted(of.markers | of.inline)
    values = ['{"name": "f", "arguments": {"a": 1}}', '"name": "f"', '"parameters": ', "f(a=", "call:f{"]
    xml = [
        "<parameter=",
        "<parameter",
        "</parameter>",
        "</function>",
        "<arg_key>",
        "</arg_value>",
        "</invoke>",
        ' name="f"',
        *(' tool="f"', ' key="a"', ' type="number"', ' type="string"', ' type="dict"', ' type="list"', ' type="raw"'),
        *(
            "<|open|>argument",
            "<|close|>argument<|sep|>",
            "<|close|>call<|sep|>",
            "<|open|>json",
            "<cofl:value",
            "<cofl:tool_param",
        ),
    ]
    return [*own, *own, *GLUE, *GLUE, *values, *xml, *(word[: len(word) // 2] for word in own)]


def read(of: Machine, pieces: list[str], special: frozenset[str], opened: bool, complete: bool) -> Answer:
    """The answer from these pieces; those in `special` come as tokens."""
    parser, events = Parser(of, SCHEMAS, opened), []
    for piece in pieces:
        events += parser.feed_marker(piece) if piece in special else parser.feed(piece)
    return collected([*events, *parser.finish(complete)])


@pytest.mark.parametrize(("tools", "reasoning"), PAIRS)
def test_random_texts(tools: str | None, reasoning: str | None) -> None:
    """Special tokens come as text or as tokens. Each text is read in pieces, and (one in four, if there are many) by
    characters too."""
    of, none = machine(Sample("", tools, reasoning, "")), frozenset[str]()
    special = frozenset(tokens_of(of))
    by_token = machine(Sample("", tools, reasoning, ""), sorted(special))
    choices, draw = words(of), random.Random(f"{tools} {reasoning}")
    for turn in range(texts(tools, reasoning)):
        pieces = draw.choices(choices, k=draw.randrange(1, 14))
        opened, complete = turn % 3 == 0, turn % 5 < 3
        for kind, tokens in ((of, none), (by_token, special)):
            if FULL and turn % 4 == 1 + (kind is of):
                continue
            first = read(kind, pieces, tokens, opened, complete)
            assert first.raw == "".join(pieces)
            if turn % 4 == 0 or not FULL:
                split = [part for piece in pieces for part in ([piece] if piece in tokens else piece)]
                assert read(kind, split, tokens, opened, complete) == first, pieces


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_time_is_linear(sample: Sample) -> None:
    """Four times the text, in pieces of a token's size, is four times the work: lines that run, and characters that are
    kept and read again with the next piece."""
    of = machine(sample)

    def work(number: int) -> int:
        text = (sample.text[: len(sample.text) // 2] + "ab <\n" * number)[: 5 * number]
        parser, read_again = Parser(of, sample.schemas, sample.opened), 0

        def feed() -> None:
            nonlocal read_again
            for at in range(0, len(text), 4):
                parser.feed(text[at : at + 4])
                read_again += len(parser._text) - parser._at
            parser.finish()

        _, lines = counted(feed)
        return lines + read_again

    number = 50_000 if FULL else 250
    assert work(4 * number) < 6 * work(number)


def test_every_name_is_its_key() -> None:
    assert all(found.name == name for name, found in {**TOOL_FORMATS, **REASONING_FORMATS}.items())
