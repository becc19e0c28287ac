"""Random texts that keep to the grammars of calls: the parser reads calls from them that fit the schemas."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from format_grammars import END, IDS, WORDS, matcher
from format_samples import FULL, Sample, collected, machine, tokens_of

from headrace.core.matcher import Matcher
from headrace.formats.call_grammar import CallableTool
from headrace.formats.parser import Parser
from headrace.formats.tool_formats import TOOL_FORMATS

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "p": {"type": "string", "pattern": "^[^b]*$|c", "maxLength": 60},
        "n": {"type": "integer"},
        "e": {"enum": ["a", "b<"]},
        "l": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "o": {
            "type": "object",
            "properties": {"x": {"type": "string"}, "y": {"type": ["number", "null"]}},
            "required": ["y"],
            "additionalProperties": False,
        },
    },
    "required": ["n", "e"],
    "additionalProperties": False,
}
TOOLS = [CallableTool("f", SCHEMA), CallableTool("now", None)]
MEMBERS: dict[str, Any] = {
    "s": lambda value: isinstance(value, str),
    "p": lambda value: isinstance(value, str) and len(value) <= 60 and ("b" not in value or "c" in value),
    "n": lambda value: type(value) is int,
    "e": lambda value: value in ("a", "b<"),
    "l": lambda value: isinstance(value, list) and len(value) <= 3 and all(type(one) is bool for one in value),
    "o": lambda value: value.keys() <= {"x", "y"} and isinstance(value.get("x", ""), str) and number(value["y"]),
}
"""Whether a value fits the property's schema."""
ENDS = ["</", "\n</parameter>\n", "</parameter>\n", '"', '"}', "<escape>", "</cofl:value>"]
LIKELY = frozenset(b'"}],<>')
WALKS = 200 if FULL else 12
STEPS = 800


def number(value: Any) -> bool:
    return value is None or type(value) in (int, float)


def fits(given: Any) -> bool:
    return {"n", "e"} <= given.keys() <= MEMBERS.keys() and all(MEMBERS[key](one) for key, one in given.items())


def weight(token: int) -> float:
    if token >= 256:
        return 20
    return 8 if token in LIKELY else 1 if 32 < token < 127 else 0.05


WEIGHTS = [weight(token) for token in range(END + 1)]


def walk(found: Matcher, draw: random.Random) -> list[int] | None:
    """Random tokens of a complete text; None if it did not end in time."""
    tokens: list[int] = []
    planned: list[int] = []
    for _ in range(STEPS):
        bits = found.mask
        allowed = [token for token in range(END + 1) if bits[token // 32] >> (token % 32) & 1]
        if found.stopped or (END in allowed and draw.random() < 0.3):
            return tokens
        allowed = [token for token in allowed if token != END]
        if not planned and draw.random() < 0.05:
            planned = list(draw.choice(ENDS).encode())
        if planned and planned[0] in allowed:
            token = planned.pop(0)
        else:
            planned = []
            (token,) = draw.choices(allowed, [WEIGHTS[one] for one in allowed])
        assert found.advance(token) is None
        tokens.append(token)
    return None


def calls(name: str, tokens: Sequence[int]) -> list[tuple[str, str]]:
    every = machine(Sample("", name, "harmony" if name == "harmony" else None, ""))
    special = [marker for marker in tokens_of(every) if marker in IDS]
    parser = Parser(machine(Sample("", name, "harmony" if name == "harmony" else None, ""), special), {"f": SCHEMA})
    events, pending = [], b""
    for token in tokens:
        word = WORDS[token]
        if token >= 256 and word.decode() in special:
            events += parser.feed(pending.decode()) + parser.feed_marker(word.decode())
            pending = b""
        else:
            pending += word
    answer = collected([*events, *parser.feed(pending.decode()), *parser.finish()])
    # There may be a preamble.
    assert not answer.content or name == "harmony"
    return answer.calls


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_calls_fit_their_schemas(name: str) -> None:
    draw, complete = random.Random(name), 0
    for _ in range(WALKS):
        tokens = walk(matcher(name, True, TOOLS), draw)
        if tokens is None:
            continue
        found = calls(name, tokens)
        complete += 1
        assert found
        for function, arguments in found:
            given = json.loads(arguments)
            assert fits(given) if function == "f" else (function, given) == ("now", {}), given
    assert complete
