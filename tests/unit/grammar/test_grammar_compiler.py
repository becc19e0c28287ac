"""Constraints over a vocabulary of bytes: what is enforced, what is refused, and what is remembered."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import numpy as np
import pytest

from headrace.core.matcher import Matcher
from headrace.errors import InvalidRequest
from headrace.grammar.backend import GrammarVocabulary
from headrace.grammar.compiler import GrammarCompiler
from headrace.grammar.llguidance_backend import LlguidanceBackend
from headrace.types import Constraint

WORDS = [bytes([i]) for i in range(256)] + [b'":', b'{"', b", ", b"true", b"<end>", b"<stop>"]
END, STOP, WIDTH = 260, 261, 300


def encode(text: str) -> list[int]:
    return list(text.encode())


VOCABULARY = GrammarVocabulary(WORDS, frozenset({END, STOP}), (END, STOP), WIDTH, encode)


@pytest.fixture(scope="module")
def backend() -> LlguidanceBackend:
    return LlguidanceBackend(VOCABULARY)


def schema(value: Any, **options: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(value), **options)


def allows(matcher: Matcher, token: int) -> bool:
    return bool(matcher.mask[token // 32] >> np.uint32(token % 32) & 1)


def read(matcher: Matcher, text: str) -> str | None:
    """None if the whole text is allowed, else what of it was read."""
    for at, token in enumerate(encode(text)):
        if matcher.stopped or not allows(matcher, token):
            return text[:at]
        assert matcher.advance(token) is None
    return None


@pytest.mark.parametrize(
    ("constraint", "complete", "others"),
    [
        (Constraint("json_object"), ['{"a": [1, {}]}', "{}"], ["[]", "1", '{"a"}']),
        (schema({"enum": ["é", 3]}), ['"é"', "3"], ['"e"', "4"]),
        (schema({"type": "integer", "minimum": -3, "maximum": 128}), ["-3", "0", "128"], ["-4", "129", "1.5"]),
        (schema({"type": "string", "pattern": "[0-9]"}), ['"x1y"'], ['"xy"']),
        (schema({"type": "array", "maxItems": 2}), ["[1, 2]", "[]"], ["[1, 2, 3]"]),
        (schema({"type": "array", "maxItems": 1}, whitespace="compact"), ["[1]"], ["[ 1]"]),
        (schema({"anyOf": [{"type": "null"}, {"type": "boolean"}]}), ["null", "true"], ["1"]),
        (Constraint("regex", "(ab)+c"), ["abc", "ababc"], ["ac", "abcd"]),
        (Constraint("choice", '["yes", "no\\\\"]'), ["yes", "no\\"], ["maybe", "no"]),
        (Constraint("gbnf", 'root ::= "a" ("b" | "c")'), ["ab", "ac"], ["ad", "a"]),
        (Constraint("lark", 'start: "x" /[0-9]{2}/'), ["x12"], ["x1", "12"]),
    ],
)
def test_what_is_enforced(
    backend: LlguidanceBackend, constraint: Constraint, complete: list[str], others: list[str]
) -> None:
    compiled = backend.compile(constraint)
    for text in complete:
        matcher = compiled.matcher()
        assert read(matcher, text) is None, text
        assert matcher.accepting, text
        if not matcher.stopped:
            assert allows(matcher, END)
            assert allows(matcher, STOP)
            assert matcher.advance(STOP) is None
            assert matcher.stopped
    for text in others:
        matcher = compiled.matcher()
        assert read(matcher, text) is not None or not matcher.accepting, text


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
        (schema(False), "cannot be compiled"),
        (Constraint("regex", "(?=a)b"), "invalid regex"),
        (Constraint("regex", "("), "cannot be compiled"),
        (Constraint("choice", "[]"), "choices are a list"),
        (Constraint("choice", '["", "a"]'), "choices are a list"),
        (Constraint("lark", "start: nowhere"), "unknown name"),
        (Constraint("lark", 'start: %json {"x-guidance": {"lenient": true}}'), "x-guidance"),
        (Constraint("regex", "a" * 300_000), "longer than"),
    ],
)
def test_what_cannot_be_enforced_is_refused(backend: LlguidanceBackend, constraint: Constraint, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        backend.compile(constraint)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_a_token_that_is_not_allowed_is_an_error(backend: LlguidanceBackend) -> None:
    matcher = backend.compile(Constraint("regex", "ab")).matcher()
    assert matcher.advance(ord("b")) is not None


def test_matchers_of_one_grammar_are_apart(backend: LlguidanceBackend) -> None:
    compiled = backend.compile(Constraint("regex", "ab|cd"))
    one, other = compiled.matcher(), compiled.matcher()
    assert one.advance(ord("a")) is None
    assert allows(one, ord("b"))
    assert not allows(other, ord("b"))
    assert other.advance(ord("c")) is None
    assert allows(other, ord("d"))


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
