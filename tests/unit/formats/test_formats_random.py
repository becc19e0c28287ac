"""Random texts through every format: nothing is lost, nothing fails, and time is linear."""

from __future__ import annotations

import random
import time

import pytest
from format_samples import FULL, SAMPLES, Sample, collected, machine, tokens_of

from headrace.formats.machine import Machine
from headrace.formats.parser import Parser
from headrace.formats.reasoning_forms import REASONING_FORMATS
from headrace.formats.tool_formats import TOOL_FORMATS

TEXTS = 100_000 if FULL else 200
"""Per format. Each is read whole and by characters, and with special tokens as text and as tokens."""
PAIRS = sorted(
    {(sample.tools, sample.reasoning) for sample in SAMPLES}
    | {(name, "harmony" if name == "harmony" else None) for name in TOOL_FORMATS}
    | {(None, name) for name in REASONING_FORMATS},
    key=str,
)
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
        *("<|open|>argument", "<|close|>argument<|sep|>", "<|close|>call<|sep|>", "<cofl:value", "<cofl:tool_param"),
    ]
    return [*own, *own, *GLUE, *GLUE, *values, *xml, *(word[: len(word) // 2] for word in own)]


@pytest.mark.parametrize(("tools", "reasoning"), PAIRS)
def test_random_texts(tools: str | None, reasoning: str | None) -> None:
    of = machine(Sample("", tools, reasoning, ""))
    special = frozenset(tokens_of(of))
    by_token = machine(Sample("", tools, reasoning, ""), sorted(special))
    choices, draw = words(of), random.Random(f"{tools} {reasoning}")
    for turn in range(TEXTS):
        pieces = draw.choices(choices, k=draw.randrange(1, 14))
        complete, opened = bool(turn % 2), turn % 3 == 0
        for kind in (of, by_token):
            parser, other = Parser(kind, SCHEMAS, opened), Parser(kind, SCHEMAS, opened)
            whole, split = [], []
            for piece in pieces:
                feed = parser.feed_marker if kind is by_token and piece in special else parser.feed
                whole += feed(piece)
                if kind is by_token and piece in special:
                    split += other.feed_marker(piece)
                else:
                    for character in piece:
                        split += other.feed(character)
            first = collected([*whole, *parser.finish(complete)])
            assert first.raw == "".join(pieces)
            assert collected([*split, *other.finish(complete)]) == first, pieces


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_time_is_linear(sample: Sample) -> None:
    """Four times the text takes about four times the processor time, in pieces of a token's size."""
    of = machine(sample)

    def seconds(length: int) -> float:
        text = (sample.text[: len(sample.text) // 2] + "ab <\n" * length)[: 5 * length]
        parser = Parser(of, sample.schemas, sample.opened)
        begun = time.process_time()
        for at in range(0, len(text), 4):
            parser.feed(text[at : at + 4])
        parser.finish()
        return time.process_time() - begun

    lines, repeats = (50_000, 1) if FULL else (1000, 3)
    small = min(seconds(lines) for _ in range(repeats))
    large = min(seconds(4 * lines) for _ in range(repeats))
    assert large < 12 * small + 0.02
    if FULL:
        print(f"1 MB: {large:.2f} s, {large / small:.1f} times a quarter of it ({sample.name})")


def test_every_name_is_its_key() -> None:
    assert all(found.name == name for name, found in {**TOOL_FORMATS, **REASONING_FORMATS}.items())
