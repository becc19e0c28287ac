"""Constraints over a vocabulary of bytes: what is enforced, what is refused, and what is remembered."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import threading
from typing import Any

import numpy as np
import pytest

from headrace.conformance.grammar import END, STOP, VOCABULARY, allows, read
from headrace.errors import InvalidRequest, Overloaded, PluginError
from headrace.grammar.compiler import GrammarCompiler
from headrace.grammar.llguidance_backend import LlguidanceBackend
from headrace.types import Constraint


@pytest.fixture(scope="module")
def backend() -> LlguidanceBackend:
    return LlguidanceBackend(VOCABULARY)


def schema(value: Any, **options: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(value), **options)


def test_patterns_match_anywhere(backend: LlguidanceBackend) -> None:
    compiled = backend.compile(schema({"type": "string", "pattern": "[0-9]"}))
    assert read(compiled.matcher(), '"x1y"') is None
    assert read(compiled.matcher(), '"xy"') is not None


def test_ends_wait_for_a_complete_text(backend: LlguidanceBackend) -> None:
    matcher = backend.compile(schema({"type": "object"})).matcher()
    for text in ("{", '"a"', ":", "1"):
        assert read(matcher, text) is None
        assert not allows(matcher, END)
        assert not allows(matcher, STOP)
    assert read(matcher, "}") is None
    assert matcher.accepting


def test_padding_and_control_tokens_never_come(backend: LlguidanceBackend) -> None:
    matcher = backend.compile(Constraint("regex", "(.|\n)*")).matcher()
    bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")
    assert set(np.flatnonzero(bits).tolist()) <= {*range(260), END, STOP}
    assert bits[ord("a")]


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (schema({"$ref": "#"}), "cannot be compiled"),
        (schema({"not": {}}), '"not"'),
        (schema({"type": "string", "format": "telephone"}), "Unknown format"),
        (schema({"type": "integer", "minimum": 3, "maximum": 2}), "cannot be compiled"),
        (schema(False), "cannot be compiled: the schema `false` allows no value"),
        (Constraint("regex", "(?=a)b"), "invalid regex"),
        (Constraint("regex", "("), "cannot be compiled"),
        (Constraint("choice", "[]"), "choices are a list"),
        (Constraint("choice", '["", "a"]'), "choices are a list"),
        (Constraint("lark", "start: nowhere"), "unknown name"),
        (Constraint("lark", 'start: %json {"x-guidance": {"lenient": true}}'), "%json"),
        (Constraint("lark", 'start: %json {"const": 9007199254740993}'), "%json"),
        (Constraint("lark", 'start: <end> "a"'), "control tokens"),
        (Constraint("lark", "start: x\nx[temperature=0.5]: /ab/"), "temperature"),
        (Constraint("regex", "a" * 300_000), "longer than"),
    ],
)
def test_what_cannot_be_enforced_is_refused(backend: LlguidanceBackend, constraint: Constraint, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        backend.compile(constraint)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


class Counting:
    """A backend that counts, over the real one."""

    def __init__(self, inner: LlguidanceBackend) -> None:
        self.inner, self.compiled = inner, 0

    def compile(self, constraint: Constraint) -> Any:
        self.compiled += 1
        if constraint.text == "fault":
            raise RuntimeError("a fault of the library")
        return self.inner.compile(constraint)


def test_grammars_are_remembered_failures_too(backend: LlguidanceBackend) -> None:
    counting = Counting(backend)
    compiler = GrammarCompiler(lambda: counting)
    good, bad = Constraint("regex", "a+"), Constraint("regex", "(", field="structured_outputs.regex")
    assert len(compiler.matchers(good, 3).result(60)) == 3
    assert len(compiler.matchers(good, 1).result(60)) == 1
    for _ in range(2):
        with pytest.raises(InvalidRequest) as caught:
            compiler.matchers(bad, 1).result(60)
        assert caught.value.param == "structured_outputs.regex"
    assert counting.compiled == 2
    with pytest.raises(InvalidRequest, match="RuntimeError"):
        compiler.matchers(Constraint("regex", "fault"), 1).result(60)
    compiler.close()
    compiler.close()


class Slow:
    """A backend whose grammars called `slow` take until they are released."""

    def __init__(self, inner: LlguidanceBackend) -> None:
        self.inner, self.released = inner, threading.Event()

    def compile(self, constraint: Constraint) -> Any:
        if constraint.text.startswith("slow"):
            assert self.released.wait(60)
        return self.inner.compile(constraint)


def test_a_grammar_that_takes_too_long_is_refused_and_holds_up_nobody(backend: LlguidanceBackend) -> None:
    slow = Slow(backend)
    compiler = GrammarCompiler(lambda: slow, seconds=0.01)
    good = Constraint("regex", "a+")
    for at in range(4):
        waiting = compiler.matchers(Constraint("regex", f"slow{at}"), 1)
        with pytest.raises(InvalidRequest, match=r"takes more than 0\.01 s to compile"):
            waiting.result(60)
    with pytest.raises(InvalidRequest, match="takes more than"):
        compiler.matchers(Constraint("regex", "slow0"), 1).result(0)
    with pytest.raises(Overloaded, match="try again later"):
        compiler.matchers(good, 1).result(60)
    slow.released.set()
    compiler.close()


def test_a_cached_grammar_does_not_wait_for_one_that_is_compiled(backend: LlguidanceBackend) -> None:
    slow = Slow(backend)
    compiler = GrammarCompiler(lambda: slow, seconds=60)
    good = Constraint("regex", "a+")
    compiler.matchers(good, 1).result(60)
    waiting = compiler.matchers(Constraint("regex", "slow"), 2)
    assert len(compiler.matchers(good, 3).result(0)) == 3
    assert not waiting.done()
    slow.released.set()
    assert len(waiting.result(60)) == 2
    compiler.close()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            "json_schema",
            json.dumps(
                {
                    "$defs": {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(3000)},
                    "$ref": "#/$defs/d0",
                }
            ),
        ),
        ("lark", "\n".join(["start: r0", *[f"r{i}: r{i + 1}" for i in range(3000)], 'r3000: "a"'])),
    ],
)
def test_long_chains_of_references_overflow_no_stack(backend: LlguidanceBackend, kind: Any, text: str) -> None:
    """An overflow would end the engine's process."""
    compiler = GrammarCompiler(lambda: backend, seconds=60)
    with contextlib.suppress(InvalidRequest):
        compiler.matchers(Constraint(kind, text), 1).result(60)
    compiler.close()


def test_a_backend_that_cannot_be_set_up_is_a_plugins_error() -> None:
    def broken() -> Any:
        raise OSError("no such library")

    compiler = GrammarCompiler(broken)
    for _ in range(2):
        with pytest.raises(PluginError, match="cannot be set up: OSError: no such library"):
            compiler.matchers(Constraint("regex", "a"), 1).result(60)
    compiler.close()


def test_random_grammars_are_compiled_or_refused_in_words(backend: LlguidanceBackend) -> None:
    rng = random.Random(7)
    words = ["::=", "%json ", "start: ", "root ", "é", "\0", "{1,9}", '"type"', "null"]
    parts = [*'()[]{}|*+?.^$\\"abc019 \n:;,=', *words]
    for _ in range(600):
        text = "".join(rng.choice(parts) for _ in range(rng.randrange(1, 30)))
        kind = rng.choice(["regex", "lark", "gbnf", "choice", "json_schema"])
        with contextlib.suppress(InvalidRequest):
            matcher = backend.compile(Constraint(kind, text)).matcher()
            assert matcher.stopped or matcher.mask.any()


def walked(backend: LlguidanceBackend, constraint: Constraint) -> str | None:
    """The reason why one of some random texts could not be followed."""
    compiled = backend.compile(constraint)
    for seed in range(6):
        rng, matcher = random.Random(seed), compiled.matcher()
        for _ in range(60):
            bits = np.flatnonzero(np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")).tolist()
            choices = [token for token in bits if token not in (END, STOP)]
            if matcher.stopped or not choices:
                break
            why = matcher.advance(rng.choice(choices))
            if why is not None:
                return why
    return None


@pytest.mark.parametrize("count", [100, 300, 1000])
def test_objects_of_many_optional_properties_can_be_followed(backend: LlguidanceBackend, count: int) -> None:
    properties = {f"p{i}": {"type": "string"} for i in range(count)}
    given = {"type": "object", "properties": properties, "additionalProperties": False}
    assert walked(backend, schema(given)) is None
    tools = {"lark": "start: schema_0 schema_0", "schemas": [given], "strict": [False]}
    assert walked(backend, Constraint("tool_calls", json.dumps(tools))) is None


def test_ambiguous_grammars_reach_a_limit() -> None:
    """Their steps take longer and longer, and the step loop waits for them."""
    words = [b"." * count for count in range(2, 39)]
    backend = LlguidanceBackend(dataclasses.replace(VOCABULARY, token_bytes=[*VOCABULARY.token_bytes, *words]))
    for kind, text in (("lark", r"start: /\./+ start*"), ("gbnf", 'root ::= "." root* | root root')):
        assert "Too many items" in str(walked(backend, Constraint(kind, text)))


ADJOINING = [
    Constraint("lark", "start: /0+/ /0+/"),
    Constraint("lark", 'start: /(ab)+/ A\nA: "ab"'),
    Constraint("lark", '%llguidance {}\nstart: "0" start'),
    Constraint("gbnf", 'root ::= "0" root'),
    Constraint(
        "structural_tag",
        json.dumps(
            {
                "type": "structural_tag",
                "format": {
                    "type": "sequence",
                    "elements": [
                        {"type": "regex", "pattern": "0+"},
                        {"type": "json_schema", "json_schema": {"const": 0}},
                    ],
                },
            }
        ),
    ),
]


@pytest.mark.parametrize("constraint", ADJOINING, ids=lambda one: one.kind)
def test_one_byte_without_end_is_not_looked_ahead_for_ever(backend: LlguidanceBackend, constraint: Constraint) -> None:
    matcher = backend.compile(constraint).matcher()
    for _ in range(3):
        token = int(np.flatnonzero(np.unpackbits(matcher.mask.view(np.uint8), bitorder="little"))[0])
        assert matcher.advance(token) is None
        assert matcher.forced() == []


@pytest.mark.parametrize(
    "options", ['{"no_forcing": false}', '{\n"no_\\u0066orcing":false}', "", '{"allow_initial_skip": true}']
)
def test_options_of_the_library_are_not_the_users(backend: LlguidanceBackend, options: str) -> None:
    with pytest.raises(InvalidRequest, match="may not set options by %llguidance"):
        backend.compile(Constraint("lark", f"%llguidance {options}\nstart: /0+/ /0+/"))
