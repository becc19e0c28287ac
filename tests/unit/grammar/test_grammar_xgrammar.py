"""The optional backend xgrammar: what it misreads never reaches it, and what reaches it is enforced."""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from headrace.conformance.grammar import VOCABULARY, GrammarSuite, allows, read
from headrace.errors import ConfigError, InvalidRequest
from headrace.grammar.backend import CompiledGrammar, GrammarBackend, MakeGrammarBackend
from headrace.grammar.loading import find_backend
from headrace.grammar.plain_regex import plain
from headrace.grammar.plain_schema import plain_schema
from headrace.plugins import PluginSet, discover
from headrace.types import Constraint

POINT = EntryPoint("xgrammar", "headrace.grammar.xgrammar_plugin", "headrace.plugins")
INSTALLED = importlib.util.find_spec("xgrammar") is not None
installed = pytest.mark.skipif(not INSTALLED, reason="the extra xgrammar is not installed")


def plugins() -> PluginSet:
    return discover([POINT])


def schema(value: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(value))


@installed
class TestXgrammar(GrammarSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def make_backend(cls) -> MakeGrammarBackend:
        return find_backend("xgrammar", plugins)


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    return find_backend("xgrammar", plugins)(VOCABULARY)


def test_it_is_a_plugin_like_those_of_third_parties() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["headrace.plugins"][POINT.name] == POINT.value
    offered = {"xgrammar": "headrace.grammar.xgrammar_backend:XgrammarBackend"} if INSTALLED else {}
    assert plugins().grammar_backends() == offered


@pytest.mark.skipif(INSTALLED, reason="the extra xgrammar is installed")
def test_without_the_package_the_remedy_is_told() -> None:
    with pytest.raises(
        ConfigError, match=r"is not installed; there are llguidance: pip install 'headrace\[xgrammar\]'"
    ):
        find_backend("xgrammar", plugins)


OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"not": {}}, "#/not: `not` cannot be enforced by this grammar backend"),
        ({"if": {}, "then": {}}, "#/if"),
        ({"oneOf": [{}]}, "#/oneOf"),
        ({"allOf": [{}, {}]}, "#/allOf: allOf of several"),
        ({"type": "array", "contains": {}}, "#/contains"),
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
        ({"type": "array", "items": [{}]}, "items is a schema"),
        ({"type": "array", "maxItems": 10**6}, "#/maxItems: 1000000 is no count of at most 1000"),
        ({"type": "string", "maxLength": 10**6}, "#/maxLength: 1000000 is no count of at most 1000"),
        ({"type": "string", "minLength": "2"}, "#/minLength: '2' is no count"),
        ({"type": "array", "items": False, "minItems": 1}, "allows nothing"),
        ({"type": "object", "propertyNames": {"maxLength": 1}}, "#/propertyNames"),
        ({"type": "object", "patternProperties": {"^a$": {}}}, "#/patternProperties"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "#/dependentRequired"),
        ({"type": "object", "required": ["q"]}, "#/required: 'q' is not among the properties"),
        ({"type": "object", "properties": {"a": {}}}, "set `additionalProperties: false`"),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": {}}, "set `additionalProperties: false`"),
        ({**OBJECT, "minProperties": 1}, "#/minProperties"),
        ({"type": "object", "maxProperties": 3}, "#/maxProperties"),
        ({"properties": {"a": {"multipleOf": 2}}, "additionalProperties": False}, "#/properties/a/multipleOf"),
        ({"type": "integer", "exclusiveMinimum": 1, "maximum": 1.5}, "allows nothing"),
        ({"type": "number", "minimum": 2, "exclusiveMaximum": 2}, "allows nothing"),
        ({"type": "number", "exclusiveMinimum": True, "minimum": 1}, "#/exclusiveMinimum: True is no number"),
        ({"enum": [1], "minimum": 2}, "`minimum` beside `enum`"),
        ({"enum": ["a"], "type": "integer"}, "allows nothing"),
        ({"anyOf": [{}], "maxLength": 2}, "`maxLength` beside `anyOf`"),
        ({"$ref": "#/$defs/a", "type": "string", "$defs": {"a": {}}}, "`type` beside `\\$ref`"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "back to itself"),
        ({"$ref": "#/$defs/b"}, "leads nowhere"),
        ({"$ref": "http://example.org/"}, "does not point into this schema"),
        ({"$dynamicRef": "#a"}, r"#/\$dynamicRef"),
        ({"type": "string", "format": "phone"}, "#/format: Unknown format: 'phone'"),
        ({"type": "string", "format": "unknown"}, "#/format: Unknown format"),
        ({"type": "string", "pattern": "a", "maxLength": 2}, "`pattern` beside `maxLength`"),
        ({"type": "string", "pattern": "(?=a)"}, "#/pattern: has look-around"),
        ({"type": "string", "pattern": "\\bа"}, r"#/pattern: has \\b"),
        ({"type": "any"}, "#/type: Invalid type: 'any'"),
        (False, "#: allows nothing"),
        ({"enum": [2**60]}, "beyond 2"),
    ],
    ids=str,
)
def test_what_is_not_enforced_truthfully_is_refused_by_place(given: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        plain_schema(json.dumps(given), False)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("given", "reduced"),
    [
        ({}, {}),
        ({"title": "x", "x-other": 1, "uniqueItems": False}, {}),
        ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 3}, {"type": "integer", "minimum": 1, "maximum": 2}),
        ({"type": ["null", "boolean"]}, {"anyOf": [{"type": "null"}, {"type": "boolean"}]}),
        ({"const": 1, "type": "integer"}, {"enum": [1]}),
        ({"enum": [1, "a", 1.5, True], "type": "integer"}, {"enum": [1]}),
        ({"allOf": [{"type": "null"}]}, {"type": "null"}),
        (OBJECT | {"required": []}, OBJECT | {"required": []}),
        ({"type": "array", "prefixItems": [{}], "maxItems": 1}, {"type": "array", "prefixItems": [{}], "items": False}),
        ({"type": "string", "pattern": "^a?b{2}$"}, {"type": "string", "pattern": "(a|)bb"}),
        (
            {"items": {"$ref": "#"}, "type": "array"},
            {"type": "array", "items": {"$ref": "#/$defs/d0"},
             "$defs": {"d0": {"type": "array", "items": {"$ref": "#/$defs/d0"}}}},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_schemas_are_reduced_to_few_keywords(given: Any, reduced: Any) -> None:
    assert json.loads(plain_schema(json.dumps(given), False)) == reduced


def test_a_keyword_without_a_type_speaks_of_its_type_alone() -> None:
    parts = json.loads(plain_schema('{"minimum": 3}', False))["anyOf"]
    assert [part["type"] for part in parts if "minimum" in part] == ["number"]
    assert len(parts) == 6


def random_regex(rng: random.Random, depth: int = 0) -> str:
    if depth > 2 or rng.random() < 0.35:
        return rng.choice(["a", "b", "c", "[ab]", "[^a]", ".", r"\n", '"', r"\\", r"\w"])
    inner = [random_regex(rng, depth + 1) for _ in range(rng.randrange(1, 3))]
    joined = rng.choice(["", "|"]).join(inner)
    return f"({joined}){rng.choice(['', '?', '*', '+', '{2}', '{1,3}', '{0,2}', '{2,}', '*?'])}"


CHARACTERS = ["a", "b", "c", "\n", '"', "\\"]
TEXTS = ["".join(one) for length in range(5) for one in itertools.product(CHARACTERS, repeat=length)]


def bare(text: str) -> bool:
    return not set(text) & set('\n"\\')


def test_reduced_expressions_mean_the_same() -> None:
    """Python's own reader judges both. Inside of JSON nothing matches that needs an escape."""
    rng = random.Random(2)
    unescaped = {one for one in TEXTS if bare(one)}
    texts = [*sorted(unescaped), *rng.sample([one for one in TEXTS if one not in unescaped], 100)]
    for _ in range(150):
        body = random_regex(rng)
        for pattern in (f"^({body})$", f"^({body})", f"({body})$", f"({body})"):
            # Python's `$` matches before a last line's end as well; its `.` all but a line's end.
            judge = re.compile(pattern.removesuffix("$") + (r"\Z" if pattern.endswith("$") else ""))
            try:
                reduced = re.compile(plain(pattern, in_json=True))
            except ValueError:
                assert not any(judge.search(one) for one in unescaped)
                continue
            expected = {one for one in unescaped if judge.search(one)}
            wrong = [one for one in texts if (one in expected) != bool(reduced.fullmatch(one))]
            assert wrong == [], pattern
        whole, judge = re.compile(plain(body, in_json=False)), re.compile(body)
        assert [one for one in texts if bool(judge.fullmatch(one)) != bool(whole.fullmatch(one))] == [], body


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a(", "ends too early"), ("a)", r"a \) without its \("), ("[", "ends too early"), ("[]", "empty class"),
        ("a**", "repeats a repetition"), ("*a", "where it cannot be enforced"), ("a^b", "where it cannot be enforced"),
        ("^a|b", "alternatives between its anchors"), ("(?i)a", "look-around or flags"), (r"\p{L}", r"\\p"),
        ("a{2,1}", "the count"), ("a{101}", r"\{101,101\}|above"), ("a{", "begins no count"),
        ("[a&&b]", "within a class"),
        ("[b-a]", "a range that is none"), (r"[\d-z]", "a range that is none"), (r"[\D]", "cannot be enforced"),
        (r"^\x01$", "no text that can be written"), ("(" * 200 + "a", "nested deeper"), ("\\", "ends too early"),
        ("((a{100}){100}){100}", "too long"),
    ],
)  # fmt: skip
def test_expressions_that_cannot_be_reduced(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain(pattern, in_json=True)


def language(compiled: CompiledGrammar, opened: str, closed: str) -> Iterator[str]:
    """Texts of at most four of the characters that are complete."""
    waiting = [""]
    while waiting:
        text = waiting.pop()
        matcher = compiled.matcher()
        assert read(matcher, opened + text) is None
        if allows(matcher, ord(closed)) if closed else matcher.accepting:
            yield text
        if len(text) < 4:
            waiting += [text + one for one in CHARACTERS if read(compiled.matcher(), opened + text + one) is None]


@installed
def test_the_library_enforces_reduced_expressions(backend: GrammarBackend) -> None:
    rng = random.Random(4)
    for body in ["(ab{1,3})?c", "((b)+){2}(([ab]|c)|([ab]){1,3})", *(random_regex(rng) for _ in range(25))]:
        judge = re.compile(body)
        expected = {text for text in TEXTS if judge.fullmatch(text)}
        assert set(language(backend.compile(Constraint("regex", body)), "", "")) == expected, body
        expected = {text for text in expected if bare(text)}
        try:
            compiled = backend.compile(schema({"type": "string", "pattern": f"^(?:{body})$"}))
        except InvalidRequest:
            assert not expected
            continue
        found = {text for text in language(compiled, '"', '"') if bare(text)}
        assert found == expected, body


@installed
@pytest.mark.parametrize(
    ("given", "complete", "others"),
    [
        (
            {"type": "string", "minLength": 2, "maxLength": 3},
            ['"ab"', '"é😀b"'],
            ['"a"', '"abcd"', '"\t\t"', '"\x01\x01"'],
        ),
        ({"type": "string", "format": "date-time"}, ['"2024-02-29T12:00:00.5Z"'], ['"2024-02-29T12:00:005Z"']),
        ({"type": "integer", "exclusiveMinimum": 9, "maximum": 100}, ["10", "100"], ["9", "101", "10.0", "1e1"]),
        (
            {"type": "number", "minimum": -0.5, "exclusiveMaximum": 2},
            ["-0.5", "1.99", "0"],
            ["-0.51", "2", "2.0", "1e5"],
        ),
        ({"type": "object", "additionalProperties": {"type": "null"}}, ["{}", '{"a": null}'], ['{"a": 1}']),
        ({"enum": ['a"\\\n', {"a": [1.5], "b": None}]}, [r'"a\"\\\n"', '{"b":null,"a":[1.5]}'], ['"a"']),
        ({"minimum": 3}, ["3", '"a"', "null", "[]"], ["2"]),
    ],
    ids=str,
)
def test_reduced_schemas_are_enforced(
    backend: GrammarBackend, given: Any, complete: list[str], others: list[str]
) -> None:
    compiled = backend.compile(schema(given))
    for text in complete:
        matcher = compiled.matcher()
        assert read(matcher, text) is None, text
        assert matcher.accepting, text
    for text in others:
        matcher = compiled.matcher()
        assert read(matcher, text) is not None or not matcher.accepting, text


@installed
@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Constraint("lark", 'start: "a"'), "use llguidance"),
        (Constraint("structural_tag", "{}"), "use llguidance"),
        (Constraint("tool_calls", "{}"), "use llguidance"),
        (Constraint("gbnf", 'root ::= "a"'), "use llguidance"),
        (Constraint("regex", r"\D"), "cannot be enforced"),
        (Constraint("regex", r"[\w]"), "cannot be enforced"),
    ],
)
def test_what_is_refused(backend: GrammarBackend, constraint: Constraint, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        backend.compile(constraint)
