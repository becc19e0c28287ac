"""Schemas that would be enforced wrongly are refused; the others keep their meaning and their order."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headrace.errors import InvalidRequest
from headrace.grammar.schema import checked_schema


def checked(schema: Any, strict: bool = False) -> Any:
    return checked_schema(json.dumps(schema), strict)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"enum": [9007199254740993]}, "#/enum/0: 9007199254740993 is beyond 2"),
        ({"const": {"a": [-(2**53) - 1]}}, "#/const/0/0: -9007199254740993 is beyond"),
        ({"properties": {"n": {"maximum": 1e300}}}, "#/properties/n/maximum: 1e.300 is beyond"),
        ({"items": {"multipleOf": 2**60}}, "#/items/multipleOf"),
        ({"items": {"multipleOf": 100_001}}, "#/items/multipleOf: 100001 is above 100000"),
        ({"properties": {f"p{i}": {} for i in range(2001)}}, "#/properties: has 2001 properties, and at most 2000"),
        ({"enum": ["a\x01"]}, "#/enum: .* has a control character"),
        ({"const": {"a": ["\x7f"]}}, "#/const: .* has a control character"),
        ({"properties": {"\x00": {}}}, "#/properties: .* has a control character"),
        ({"required": ["\x0b"]}, "#/required: .* has a control character"),
        ({"items": {"pattern": "(?i)a"}}, "#/items/pattern: look-around and flags"),
        ({"patternProperties": {"[]": {}}}, "#/patternProperties: an empty class"),
        ({"minProperties": 2}, "minProperties 2 cannot be enforced over free keys"),
        ({"minProperties": 3, "required": ["a", "b"]}, "minProperties 3"),
        ({"format": "date", "pattern": "^2"}, "format 'date' beside 'pattern'"),
        ({"$ref": "#/default", "default": {"const": 2**60}}, "#/default' points into 'default', which holds data"),
        ({"items": {"$ref": "#/examples/0"}, "examples": [{}]}, "points into 'examples'"),
        ({"$ref": "#/%64efault", "default": {}}, "points into 'default'"),
        ({"$ref": "#/x/const", "x": {"const": {}}}, "points into 'const'"),
        ([], "must be an object, not list"),
        ("x", "must be an object, not str"),
    ],
)
def test_refused(schema: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        checked(schema)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["", "{", '{"a": NaN}', '{"enum": [Infinity]}', "{'a': 1}"])
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        checked_schema(text, False)


@pytest.mark.parametrize("levels", [101, 5000, 200_000])
def test_depth_is_bounded(levels: int) -> None:
    with pytest.raises(InvalidRequest, match="nested deeper than 100 levels"):
        checked_schema('{"items":' * levels + "{}" + "}" * levels, False)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "integer", "minimum": -(2**53), "maximum": 2**53},
        {"minProperties": 1},
        {"$ref": "#/$defs/default", "$defs": {"default": {"type": "null"}}},
        {"enum": ["a\n\t\r\b\f", "\u2028é"]},
        {"properties": {"pattern": {"pattern": "^a+$"}}, "patternProperties": {"^b": {}}},
        {"properties": {"a": {"description": "\x01"}}},
        {"minProperties": 2, "required": ["a", "b"]},
        {"properties": {"z": {}, "a": {}, "m": {}}},
        {"properties": {"format": {"type": "string"}, "minProperties": {"const": 1}}},
    ],
)
def test_unchanged(schema: Any) -> None:
    found = checked(schema)
    assert found == schema
    assert json.dumps(found) == json.dumps(schema), "keys keep their order"


def test_options_for_the_library_are_left_out() -> None:
    schema = {"x-guidance": {"lenient": True}, "items": {"x-guidance": {}, "type": "string"}}
    assert checked(schema) == {"items": {"type": "string"}}
    assert checked({"const": {"x-guidance": 1}}) == {"const": {"x-guidance": 1}}, "data is data"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
            "every property in `required`, and 'a' is not",
        ),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, "`additionalProperties: false`"),
        ({"type": "object"}, "`additionalProperties: false`"),
        ({"type": "object", "additionalProperties": False, "items": {"type": ["object", "null"]}}, "#/items: "),
        ({}, "`type: object` at its root"),
        ({"anyOf": [{"type": "object"}]}, "`type: object` at its root"),
        (
            {
                "type": "object",
                "$defs": {"x": {"properties": {"b": {}}}},
                "properties": {},
                "additionalProperties": False,
            },
            r"#/\$defs/x: .*'b' is not",
        ),
    ],
)
def test_strict(schema: Any, message: str) -> None:
    checked(schema)
    with pytest.raises(InvalidRequest, match=message):
        checked(schema, strict=True)


@pytest.mark.parametrize(
    ("form", "valid", "invalid"),
    [
        (
            "date",
            ["2024-02-29", "2000-02-29", "1999-12-31", "2023-04-30"],
            ["2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "2023-00-10", "2023-01-00", "23-01-01"],
        ),
        ("time", ["23:59:59Z", "00:00:00.5+01:00"], ["24:00:00Z", "23:59:60Z", "12:00Z", "12:00:00", "12:00:00+25:00"]),
        ("date-time", ["2024-02-29T12:00:00Z"], ["2023-02-29T12:00:00Z", "2024-02-29 12:00:00Z"]),
    ],
)
def test_dates_and_times_are_those_of_rfc_3339(form: str, valid: list[str], invalid: list[str]) -> None:
    pattern = checked({"type": "string", "format": form})["pattern"]
    assert [text for text in valid if not re.search(pattern, text)] == []
    assert [text for text in invalid if re.search(pattern, text)] == []
