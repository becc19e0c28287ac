"""Rewrites that keep a schema's meaning, the places that errors name, and formats held to Python's own readers."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import json
import random
import re
from typing import Any

import pytest

from headrace.conformance.grammar import VOCABULARY, read
from headrace.errors import InvalidRequest
from headrace.grammar.llguidance_backend import LlguidanceBackend
from headrace.grammar.places import place_of
from headrace.grammar.schema import checked_schema
from headrace.grammar.string_formats import FORMATS
from headrace.types import Constraint


@pytest.fixture(scope="module")
def backend() -> LlguidanceBackend:
    return LlguidanceBackend(VOCABULARY)


def schema(value: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(value))


@pytest.mark.parametrize(
    "nothing",
    [
        {"uniqueItems": False}, {"uniqueItems": True, "maxItems": 1}, {"not": False}, {"propertyNames": {}},
        {"unevaluatedProperties": True}, {"unevaluatedItems": {}}, {"dependentRequired": {}}, {"dependentSchemas": {}},
        {"if": {"type": "string"}}, {"then": {"type": "string"}}, {"else": False}, {"minContains": 2},
        {"maxContains": 0}, {"contains": {"type": "string"}, "minContains": 0},
    ],
    ids=str,
)  # fmt: skip
def test_what_asks_for_nothing_is_left_out(backend: LlguidanceBackend, nothing: Any) -> None:
    """Refused before, since the library has none of these keywords."""
    kept = {"maxItems": 1} if "maxItems" in nothing else {}
    assert checked_schema(json.dumps({"items": {"type": "array", **nothing}}), False) == {
        "items": {"type": "array", **kept}
    }
    assert read(backend.compile(schema(nothing)).matcher(), "[]") is None


@pytest.mark.parametrize(
    "something",
    [
        {"uniqueItems": True}, {"uniqueItems": True, "maxItems": 2}, {"not": True}, {"unevaluatedProperties": False},
        {"propertyNames": False}, {"if": True, "then": False}, {"contains": {}}, {"contains": {}, "minContains": 1},
        {"contains": {}, "minContains": 0, "maxContains": 1}, {"dependentRequired": {"a": ["b"]}}, {"uniqueItems": 0},
    ],
    ids=str,
)  # fmt: skip
def test_what_asks_for_something_is_refused(backend: LlguidanceBackend, something: Any) -> None:
    assert checked_schema(json.dumps(something), False) == something
    with pytest.raises(InvalidRequest):
        backend.compile(schema(something))


def test_keywords_that_are_names_stay() -> None:
    names = {"properties": {"uniqueItems": False, "then": {}}, "const": {"uniqueItems": False}}
    assert checked_schema(json.dumps(names), False) == names


def test_constants_take_their_keys_in_any_order(backend: LlguidanceBackend) -> None:
    value = {"a": 1, "b": [{"c": 2, "d": 3}], "e": {}}
    compiled = backend.compile(schema({"const": value}))
    for keys in itertools.permutations(value):
        for inner in ({"c": 2, "d": 3}, {"d": 3, "c": 2}):
            text = json.dumps({key: [inner] if key == "b" else value[key] for key in keys})
            assert read(compiled.matcher(), text) is None, text
    assert read(compiled.matcher(), '{"a": 1, "e": {}}') is not None
    assert checked_schema('{"enum": [1, {"b": 1, "a": 2}]}', False) == {"enum": [1, {"b": 1, "a": 2}, {"a": 2, "b": 1}]}
    long = {"const": dict.fromkeys("edcba", 0)}
    assert json.dumps(checked_schema(json.dumps(long), False)) == json.dumps(long), "too many: the order as written"
    both = {"const": {"a": 1, "b": 2}, "enum": [1]}
    assert checked_schema(json.dumps(both), False) == both


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"properties": {"a": {"items": {"not": {}}}}}, "#/properties/a/items/not"),
        ({"anyOf": [{}, {"uniqueItems": True}]}, "#/anyOf/1/uniqueItems"),
        ({"$ref": "#/$defs/b", "$defs": {"a": {"not": {}}, "b": {"not": {}}}}, "#/$defs/b/not"),
        ({"$ref": "#/$defs/a~1%20b", "$defs": {"a/ b": {"contains": {}}}}, "#/$defs/a~1%20b/contains"),
        ({"properties": {"not": {"type": "string", "format": "phone"}}}, "#/properties/not/format"),
        ({"properties": {"a": {"type": "any"}}}, "#/properties/a/type"),
        ({"prefixItems": [{"minimum": "a"}]}, "#/prefixItems/0/minimum"),
        ({"items": {"properties": []}}, "#/items/properties"),
        ({"const": {"not": {}}, "not": True}, "#/not"),
    ],
)
def test_refusals_name_the_place(backend: LlguidanceBackend, given: Any, place: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        backend.compile(schema(given))
    assert str(caught.value).startswith(f"the constraint cannot be compiled: at {place}: ")


def test_places_that_cannot_be_told() -> None:
    assert place_of("Unsatisfiable schema", {"not": {}}) is None
    assert place_of('Unimplemented keys: ["not"]', {"$ref": "#/a/0/5", "items": []}) is None
    assert place_of('Unimplemented keys: ["not"]', True) is None
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert place_of('Unimplemented keys: ["not"]', loop) is None


def test_half_of_a_surrogate_pair_is_told_by_place(backend: LlguidanceBackend) -> None:
    for text, place in (
        (r'{"items": {"const": ["a", "\ud800"]}}', "#/items/const/1"),
        (r'{"properties": {"\udc00": {}}}', "#/properties"),
        (r'{"pattern": "a\ud83d"}', "#/pattern"),
    ):
        with pytest.raises(InvalidRequest, match=re.escape(f"at {place}: has half of a surrogate pair")):
            backend.compile(Constraint("json_schema", text))
    assert checked_schema(r'{"const": "\ud83d\ude00"}', False) == {"const": "😀"}


@pytest.mark.parametrize("text", ["a\ud800", "\udfff"])
@pytest.mark.parametrize("kind", ["regex", "lark", "gbnf", "json_schema", "structural_tag", "choice"])
def test_half_of_a_surrogate_pair_is_refused_in_words(backend: LlguidanceBackend, kind: Any, text: str) -> None:
    given = json.dumps([text]) if kind == "choice" else text
    with pytest.raises(InvalidRequest, match="has half of a surrogate pair, which is no character"):
        backend.compile(Constraint(kind, given))


def ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text


def test_ipv6_addresses_are_those_that_python_reads() -> None:
    rng = random.Random(5)
    texts = ["::", "::1", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1::d6:192.168.0.1", "1::2::3"]
    texts += ["".join(rng.choice([":", "::", "1", "ab", "12345", "1.2.3.4", "0", "256.1.1.1", "f:", "c:"])
                      for _ in range(rng.randrange(1, 12))) for _ in range(4000)]  # fmt: skip
    wrong = [text for text in texts if bool(re.search(FORMATS["ipv6"], text)) != ipv6(text)]
    assert wrong == []
    assert sum(map(ipv6, texts)) > 50


def test_dates_are_those_that_python_reads() -> None:
    for year in (1, 1900, 2000, 2023, 2024):
        for month in range(14):
            for day in range(33):
                try:
                    datetime.date(year, month, day)
                    right = True
                except ValueError:
                    right = False
                assert bool(re.search(FORMATS["date"], f"{year:04}-{month:02}-{day:02}")) == right


@pytest.mark.parametrize(
    ("form", "valid", "invalid"),
    [
        (
            "email",
            ["a@b", "a.b+c@example.org", '"a b"@c.d', '"a\\"b"@c', "a@[1.2.3.4]", "a@[IPv6:::1]", "te~st@example.com"],
            ["a", "@b", "a@", "a..b@c", ".a@b", "a@-b", "a@b-", "a b@c", '"a"b"@c', "a@[1.2.3]", "a@[::1]", "é@b"],
        ),
        ("ipv6", ["::ffff:1.2.3.4"], ["::1%eth0", "12345::", "[::1]"]),
        ("date-time", ["2024-02-29t12:00:00.5z"], ["2024-02-29 12:00:00Z", "1998-12-31T23:59:60Z"]),
    ],
)
def test_formats_are_enforced(backend: LlguidanceBackend, form: str, valid: list[str], invalid: list[str]) -> None:
    compiled = backend.compile(schema({"type": "string", "format": form}))
    for text in valid:
        assert read(compiled.matcher(), json.dumps(text)) is None, text
    for text in invalid:
        assert read(compiled.matcher(), json.dumps(text, ensure_ascii=False)) is not None, text


def test_a_format_and_a_length_hold_together(backend: LlguidanceBackend) -> None:
    compiled = backend.compile(schema({"type": "string", "format": "email", "maxLength": 5}))
    assert read(compiled.matcher(), '"a@b.c"') is None
    assert read(compiled.matcher(), '"a@b.cd"') is not None
    compiled = backend.compile(schema({"type": "string", "format": "email", "pattern": "^a"}))
    assert read(compiled.matcher(), '"a@b.c"') is None
    assert read(compiled.matcher(), '"b@b.c"') is not None
