"""Random texts through every format: nothing is lost, nothing fails, and time is linear."""

from __future__ import annotations

import random
import time

import pytest
from format_samples import FULL, SAMPLES, Sample, collected, machine

from headrace.formats.machine import Machine
from headrace.formats.parser import Parser
from headrace.formats.reasoning_forms import REASONING_FORMATS
from headrace.formats.tool_formats import TOOL_FORMATS

TEXTS = 4000 if FULL else 200
"""Per format; each text is read in four ways."""
PAIRS = sorted({(sample.tools, sample.reasoning) for sample in SAMPLES}, key=str)
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
    ]
    return [*own, *own, *GLUE, *GLUE, *values, *xml, *(word[: len(word) // 2] for word in own)]


@pytest.mark.parametrize(("tools", "reasoning"), PAIRS)
def test_random_texts(tools: str | None, reasoning: str | None) -> None:
    of = machine(Sample("", tools, reasoning, ""))
    special = frozenset(marker for marker in of.markers if len(marker) > 3)
    by_token = machine(Sample("", tools, reasoning, ""), sorted(special))
    choices, draw = words(of), random.Random(f"{tools} {reasoning}")
    for turn in range(TEXTS):
        pieces = draw.choices(choices, k=draw.randrange(1, 14))
        complete = bool(turn % 2)
        for kind in (of, by_token):
            parser, other = Parser(kind), Parser(kind)
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
    """Twice the text takes about twice the processor time, in pieces of a token's size."""
    of = machine(sample)

    def seconds(length: int) -> float:
        text = (sample.text[: len(sample.text) // 2] + "ab <\n" * length)[: 5 * length]
        parser = Parser(of, sample.schemas, sample.opened)
        begun = time.process_time()
        for at in range(0, len(text), 4):
            parser.feed(text[at : at + 4])
        parser.finish()
        return time.process_time() - begun

    small = min(seconds(1000) for _ in range(3))
    assert min(seconds(4000) for _ in range(3)) < 12 * small + 0.02


def test_every_name_is_its_key() -> None:
    assert all(found.name == name for name, found in {**TOOL_FORMATS, **REASONING_FORMATS}.items())
