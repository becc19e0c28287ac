"""The test suite for grammar backends: constraints to enforce or refuse, with a small vocabulary of bytes and words."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from headrace.core.matcher import Matcher
from headrace.errors import InvalidRequest
from headrace.grammar.backend import GrammarBackend, GrammarVocabulary, MakeGrammarBackend
from headrace.types import Constraint

__all__ = ["END", "STOP", "VOCABULARY", "GrammarSuite", "allows", "read"]

_WORDS = [b'":', b'{"', b", ", b"true", b"<end>", b"<stop>"]
END, STOP, _WIDTH = 260, 261, 300
VOCABULARY = GrammarVocabulary(
    token_bytes=[*(bytes([i]) for i in range(256)), *_WORDS],
    special_ids=frozenset({END, STOP}),
    eos_token_ids=(END, STOP),
    width=_WIDTH,
    encode=lambda text: list(text.encode()),
)
"""Every byte, a few words, two end tokens, and columns of logits without a token."""


def allows(matcher: Matcher, token: int) -> bool:
    return bool(matcher.mask[token // 32] >> np.uint32(token % 32) & 1)


def read(matcher: Matcher, text: str) -> str | None:
    """Advance the matcher by a text, byte by byte. None if all of it is allowed, otherwise the allowed part."""
    data = text.encode()
    for at, token in enumerate(data):
        if matcher.stopped or not allows(matcher, token):
            return data[:at].decode("utf-8", "replace")
        why = matcher.advance(token)
        assert why is None, f"{text!r}: the mask allows byte {at} and `advance` refuses it: {why}"
    return None


def _schema(value: Any, **options: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(value), **options)


_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_CASES = [
    (Constraint("json_object"), ['{"a": [1, {}]}', "{}"], ["[]", "1", '{"a"}']),
    (_schema(_PERSON), ['{"name": "é", "age": -1}'], ['{"name": "a"}', '{"name": 1, "age": 1}', '{"x": 1}']),
    (_schema({"enum": ["é", 3]}), ['"é"', "3"], ['"e"', "4"]),
    (_schema({"type": "integer", "minimum": -3, "maximum": 128}), ["-3", "0", "128"], ["-4", "129", "1.5"]),
    (_schema({"type": "array", "maxItems": 2}), ["[1, 2]", "[]"], ["[1, 2, 3]"]),
    (_schema({"type": "array", "maxItems": 1}, whitespace="compact"), ["[1]"], ["[ 1]"]),
    (_schema({"anyOf": [{"type": "null"}, {"type": "boolean"}]}), ["null", "true"], ["1"]),
    (Constraint("regex", "(ab)+c"), ["abc", "ababc"], ["ac", "abcd"]),
    (Constraint("choice", '["yes", "no\\\\"]'), ["yes", "no\\"], ["maybe", "no"]),
    (Constraint("gbnf", 'root ::= "a" ("b" | "c")'), ["ab", "ac"], ["ad", "a"]),
    (Constraint("lark", 'start: "x" /[0-9]{2}/'), ["x12"], ["x1", "12"]),
    (
        Constraint(
            "structural_tag",
            '{"structures": [{"begin": "<a>", "schema": {"enum": [1]}, "end": "</a>"}], "triggers": ["<"]}',
        ),
        ["", "text", "b<a>1</a>c<a>1</a>"],
        ["<", "<b", "<a>2</a>", "<a>1"],
    ),
]
"""Constraints, texts that are complete under them, and texts that are not."""
_HARD = [
    ({"enum": [9007199254740993]}, "9007199254740992"),
    ({"type": "integer", "minimum": 9007199254740993}, "9007199254740992"),
    ({"minProperties": 2}, '{"a": 1, "a": 1}'),
    ({"not": {"type": "string"}}, '"a"'),
    ({"type": "array", "uniqueItems": True}, "[1, 1]"),
    ({"type": "array", "contains": {"type": "integer"}}, '["a"]'),
    ({"propertyNames": {"maxLength": 1}}, '{"ab": 1}'),
    ({"dependentRequired": {"a": ["b"]}}, '{"a": 1}'),
    ({"if": {"type": "string"}, "then": {"maxLength": 1}}, '"ab"'),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "3"),
    ({"allOf": [{"maximum": 5}, {"minimum": 3}], "type": "integer"}, "2"),
    ({"type": "string", "format": "nothing-known"}, '"a"'),
    ({"type": "string", "format": "date"}, '"2023-02-29"'),
    ({"type": "string", "minLength": 2, "pattern": "^a"}, '"a"'),
    ({"properties": {"ab": {"type": "integer"}}}, '{"\\u0061b": "x"}'),
    ({"properties": {"é": {"type": "integer"}}}, '{"\\u00e9": "x"}'),
    ({"patternProperties": {"^a": {"type": "integer"}}}, '{"\\u0061b": "x"}'),
    ({"type": "string", "pattern": r"^\S$"}, '"\ufeff"'),
    ({"type": "string", "pattern": r'^[^"]$'}, r'"\""'),
    ({"type": "string", "pattern": r"^[^\\]$"}, r'"\\"'),
    ({"type": "string", "pattern": "^[[a]]$"}, '"a"'),
    ({"type": "string", "pattern": "^[a&&b]$"}, '"ab"'),
    ({"type": "string", "pattern": r"^\A$"}, '""'),
    ({"$ref": "#/$defs/a", "maxLength": 1, "$defs": {"a": {"type": "string"}}}, '"ab"'),
]
"""Schemas that some libraries accept but don't enforce, with an invalid text. A backend must refuse the schema or the
text."""
_BROKEN = [
    Constraint("regex", "("),
    Constraint("regex", "a\\"),
    Constraint("choice", "[]"),
    Constraint("lark", "start: nowhere"),
    Constraint("gbnf", "root ::= ("),
    Constraint("json_schema", "{"),
    Constraint("json_schema", '{"$ref": "#"}'),
    Constraint("json_schema", '{"type": "integer", "minimum": 3, "maximum": 2}'),
    Constraint("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000),
    Constraint("structural_tag", "{}"),
    Constraint("regex", "a" * 300_000),
    Constraint("regex", "a\ud800"),
    Constraint("choice", '["\\ud800"]'),
    Constraint("json_schema", '{"const": "\\ud800"}'),
]
_DEAD_ENDS = [
    Constraint("gbnf", 'root ::= "a" root'),
    Constraint("gbnf", 'root ::= "a" x | "b"\nx ::= "c" x'),
    Constraint("gbnf", 'root ::= "a" x\nx ::= x "c"'),
    Constraint("lark", 'start: "a" x | "b"\nx: x "c"'),
    Constraint("regex", "a[^\\s\\S]b|b"),
]
"""Grammars in which some beginning leads to no complete text."""
_COSTLY = [
    Constraint("regex", "((a{1,50}){1,50}){1,50}"),
    Constraint("regex", "(.*a.{50}){50}"),
    Constraint("gbnf", 'root ::= root root | "a" | ""'),
    Constraint("lark", r"start: /\./+ start*"),
    _schema({"type": "string", "maxLength": 10**6}),
    _schema({"type": "array", "items": {"type": "integer"}, "maxItems": 10**5}),
    _schema({"properties": {f"p{i}": {"maxLength": i} for i in range(300)}}),
    _schema({"anyOf": [{"properties": {f"p{i}": {"const": i}}, "required": [f"p{i}"]} for i in range(100)]}),
]


class GrammarSuite:
    """Subclass it in a test file and give it a `make_backend` fixture; that is all.

    A backend may refuse a whole kind of constraint (`InvalidRequest`); the cases of that kind are then skipped.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, make_backend: MakeGrammarBackend) -> GrammarBackend:
        return make_backend(VOCABULARY)

    @pytest.mark.parametrize(("constraint", "complete", "others"), _CASES, ids=lambda value: str(value)[:40])
    def test_texts_are_allowed_exactly(
        self, backend: GrammarBackend, constraint: Constraint, complete: list[str], others: list[str]
    ) -> None:
        try:
            compiled = backend.compile(constraint)
        except InvalidRequest as refusal:
            pytest.skip(str(refusal))
        for text in complete:
            matcher = compiled.matcher()
            assert read(matcher, text) is None, text
            assert matcher.accepting, text
            if not matcher.stopped:
                assert allows(matcher, END), "every end token is allowed if the text is complete"
                assert allows(matcher, STOP), "every end token is allowed if the text is complete"
                assert matcher.advance(STOP) is None
                assert matcher.stopped
        for text in others:
            matcher = compiled.matcher()
            assert read(matcher, text) is not None or not matcher.accepting, text

    @pytest.mark.parametrize(("schema", "invalid"), _HARD, ids=lambda value: str(value)[:40])
    def test_what_cannot_be_enforced_is_refused(self, backend: GrammarBackend, schema: Any, invalid: str) -> None:
        try:
            matcher = backend.compile(_schema(schema)).matcher()
        except InvalidRequest:
            return
        assert read(matcher, invalid) is not None or not matcher.accepting, f"{invalid} is invalid"

    @pytest.mark.parametrize("constraint", _BROKEN, ids=lambda one: f"{one.kind} {one.text[:20]}")
    def test_broken_grammars_are_refused_in_one_line(self, backend: GrammarBackend, constraint: Constraint) -> None:
        with pytest.raises(InvalidRequest) as caught:
            backend.compile(constraint)
        assert 0 < len(str(caught.value)) < 400
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("seed", range(8))
    def test_a_random_walk_keeps_to_the_mask(self, backend: GrammarBackend, seed: int) -> None:
        """`advance` accepts every token of the mask. End tokens are only allowed if the text is complete, padding
        never."""
        rng = random.Random(seed)
        matcher = backend.compile(Constraint("json_object")).matcher()
        text = b""
        for _ in range(60):
            bits = np.flatnonzero(np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")).tolist()
            assert bits, "at least one token is allowed"
            assert set(bits) <= {*range(END), END, STOP}, "ids without a token, and special ones, are never allowed"
            assert (END in bits) == (STOP in bits) == matcher.accepting
            token = rng.choice(bits)
            text += b"" if token in (END, STOP) else VOCABULARY.token_bytes[token]
            assert matcher.advance(token) is None
            if matcher.stopped:
                json.loads(text)
                return

    def test_a_token_that_is_not_allowed_is_an_error(self, backend: GrammarBackend) -> None:
        assert backend.compile(Constraint("json_object")).matcher().advance(ord("]")) is not None

    def test_words_are_allowed_as_their_bytes_are(self, backend: GrammarBackend) -> None:
        matcher = backend.compile(_schema({"type": ["object", "boolean"]})).matcher()
        assert allows(matcher, 256 + _WORDS.index(b'{"'))
        assert allows(matcher, 256 + _WORDS.index(b"true"))
        assert not allows(matcher, 256 + _WORDS.index(b", "))

    def test_masks_have_the_width_of_the_logits(self, backend: GrammarBackend) -> None:
        mask = backend.compile(Constraint("json_object")).matcher().mask
        assert mask.dtype == np.uint32
        assert mask.shape == (-(-_WIDTH // 32),)

    @pytest.mark.parametrize("constraint", _DEAD_ENDS, ids=lambda one: f"{one.kind} {one.text[:20]}")
    def test_a_dead_end_is_an_error_or_cannot_be_reached(self, backend: GrammarBackend, constraint: Constraint) -> None:
        """A mask without tokens would look like a complete text."""
        try:
            matcher = backend.compile(constraint).matcher()
        except InvalidRequest:
            return
        for _ in range(20):
            assert matcher.mask.any() or matcher.stopped
            token = next((one for one in b"acb" if allows(matcher, one)), None)
            if token is None or matcher.advance(token) is not None or matcher.stopped:
                return

    @pytest.mark.parametrize("constraint", _COSTLY, ids=lambda one: f"{one.kind} {one.text[:20]}")
    def test_costly_grammars_are_refused_or_followed(self, backend: GrammarBackend, constraint: Constraint) -> None:
        """No step raises; a limit that is reached is a reason."""
        try:
            matcher = backend.compile(constraint).matcher()
        except InvalidRequest:
            return
        rng = random.Random(1)
        for _ in range(30):
            bits = np.flatnonzero(np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")).tolist()
            assert bits or matcher.stopped
            if matcher.stopped or matcher.advance(rng.choice(bits)) is not None:
                return

    def test_a_new_matcher_starts_at_the_beginning(self, backend: GrammarBackend) -> None:
        """Whatever happened to others of the same grammar: one that moved, one that stopped, one that failed."""
        compiled = backend.compile(_schema({"enum": ["ab", "cd"]}, whitespace="compact"))
        first = compiled.matcher().mask.copy()
        moved, stopped, failed = compiled.matcher(), compiled.matcher(), compiled.matcher()
        assert read(moved, '"a') is None
        assert read(stopped, '"cd"') is None
        assert stopped.accepting
        assert failed.advance(ord("x")) is not None
        fresh = compiled.matcher()
        assert (fresh.mask == first).all()
        assert read(fresh, '"cd"') is None
        assert fresh.accepting
        assert read(moved, 'b"') is None

    def test_matchers_of_one_grammar_are_apart(self, backend: GrammarBackend) -> None:
        compiled = backend.compile(_schema({"enum": ["ab", "cd"]}, whitespace="compact"))
        one, other = compiled.matcher(), compiled.matcher()
        assert read(one, '"a') is None
        assert read(other, '"c') is None
        assert allows(one, ord("b"))
        assert allows(other, ord("d"))
        assert not allows(other, ord("b"))

    def test_a_copy_looks_ahead_without_moving_the_matcher(self, backend: GrammarBackend) -> None:
        matcher = backend.compile(_schema({"enum": ["ab", "cd"]}, whitespace="compact")).matcher()
        assert read(matcher, '"') is None
        ahead = matcher.copy()
        assert read(ahead, 'cd"') is None
        assert allows(matcher, ord("a"))
        assert read(matcher, "a") is None
        assert not allows(matcher, ord("d"))

    def test_forced_tokens_are_allowed_and_follow_from_the_text(self, backend: GrammarBackend) -> None:
        """Whatever the tokens of the text are; none are forced where there is a choice."""
        compiled = backend.compile(_schema(_PERSON, whitespace="compact"))
        byte, word = compiled.matcher(), compiled.matcher()
        assert read(byte, '{"') is None
        assert word.advance(256 + _WORDS.index(b'{"')) is None
        assert list(byte.forced()) == list(word.forced())
        for token in list(byte.forced()):
            assert allows(byte, token)
            assert byte.advance(token) is None
        free = backend.compile(_schema({"enum": ["ab", "cd"]}, whitespace="compact")).matcher()
        assert read(free, '"') is None
        assert list(free.forced()) == []
