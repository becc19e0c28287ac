"""Answers of every family, with what they must give, and how they are read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from format_sample import Call, Sample
from further_samples import FURTHER
from recorded_samples import RECORDED

from headrace.formats.events import Event
from headrace.formats.machine import Machine
from headrace.formats.parser import Parser
from headrace.formats.reasoning_forms import REASONING_FORMATS
from headrace.formats.tool_formats import TOOL_FORMATS

__all__ = ["FULL", "SAMPLES", "Answer", "Sample", "check", "collected", "machine", "parse", "tokens_of"]

FULL = os.environ.get("FORMATS_FULL") == "1"
"""Every split of the samples, 10^5 random texts per format and texts of 1 MB, in about an hour; by default a part of
each."""

SAMPLES = [*RECORDED, *FURTHER]


@dataclass
class Answer:
    content: str
    thought: str
    calls: list[Call]
    ids: list[str | None]
    raw: str


def collected(events: Iterable[Event]) -> Answer:
    """An answer from its events. Fails for events in an order that cannot be."""
    answer = Answer("", "", [], [], "")
    is_open = False
    for event in events:
        answer.raw += event.raw
        if event.kind == "content":
            assert event.text == event.raw
            answer.content += event.text
        elif event.kind == "reasoning":
            answer.thought += event.text
        elif event.kind == "call":
            assert not is_open
            answer.calls.append((event.text, ""))
            answer.ids.append(event.call_id)
            is_open = True
        elif event.kind == "arguments":
            assert is_open
            name, arguments = answer.calls[-1]
            answer.calls[-1] = name, arguments + event.text
        elif event.kind == "end":
            assert is_open
            is_open = False
    assert not is_open
    return answer


def tokens_of(of: Machine) -> list[str]:
    """The markers, and parts of markers, that a vocabulary has as special tokens."""
    found = [marker for marker in of.markers | of.inline if re.fullmatch(r"[<\[｜][^=\n]{2,}[>\]｜]", marker)]
    # A marker that holds a token is several.
    return sorted(one for one in found if not any(token in one and token != one for token in of.inline))


def machine(sample: Sample, special: Sequence[str] = ()) -> Machine:
    return _machine(sample.tools, sample.reasoning, tuple(special))


@cache
def _machine(tools: str | None, reasoning: str | None, special: tuple[str, ...]) -> Machine:
    return Machine(TOOL_FORMATS[tools] if tools else None, REASONING_FORMATS[reasoning] if reasoning else None, special)


def parse(sample: Sample, pieces: Iterable[str], of: Machine | None = None, markers: Sequence[str] = ()) -> Answer:
    """Read the pieces; those in `markers` as special tokens."""
    parser = Parser(of or machine(sample), sample.schemas, sample.opened)
    events: list[Event] = []
    for piece in pieces:
        events += parser.feed_marker(piece) if piece in markers else parser.feed(piece)
    return collected([*events, *parser.finish(sample.complete)])


def check(sample: Sample, answer: Answer) -> None:
    assert answer.raw == sample.text
    assert answer.content == sample.content
    assert answer.thought == sample.thought
    assert answer.calls == sample.calls
    if sample.ids is not None:
        assert answer.ids == sample.ids
    if sample.complete:
        for _, arguments in answer.calls:
            assert isinstance(json.loads(arguments), dict)
