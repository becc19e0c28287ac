"""Constraints as a caller states them: what becomes of each, what is refused by its name, and typed values."""

from __future__ import annotations

import enum
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
from pydantic import BaseModel, field_validator
from typing_extensions import TypedDict

from headrace.client.api import GenerateRequest
from headrace.client.validate import validated
from headrace.embedding_facts import EmbeddingFacts
from headrace.errors import InvalidRequest
from headrace.sampling import SamplingParams
from headrace.structured_outputs import Constraint, StructuredOutputs


class Person(BaseModel):
    name: str
    age: int

    @field_validator("age")
    @classmethod
    def grown_up(cls, value: int) -> int:
        if value < 18:
            raise ValueError("too young")
        return value


@dataclass
class Point:
    x: int
    y: int = 0


class Row(TypedDict):
    cells: list[str]


class Colour(enum.Enum):
    RED = "red"


class Opaque:
    pass


@pytest.mark.parametrize(
    ("given", "constraint"),
    [
        ({"json": {"type": "object"}}, Constraint("json_schema", '{"type": "object"}')),
        ({"json": '{"b": 1, "a": 2}'}, Constraint("json_schema", '{"b": 1, "a": 2}')),
        ({"json": True}, Constraint("json_schema", "true")),
        ({"json": {}, "strict": True}, Constraint("json_schema", "{}", strict=True)),
        ({"json_object": True, "whitespace": "compact"}, Constraint("json_object", whitespace="compact")),
        ({"regex": "a+"}, Constraint("regex", "a+")),
        ({"choice": ["b", "a"]}, Constraint("choice", '["b", "a"]')),
        ({"choice": {"b", "a"}}, Constraint("choice", '["a", "b"]')),
        ({"grammar": 'start: "a"'}, Constraint("lark", 'start: "a"')),
        ({"grammar": 'root ::= "a"'}, Constraint("gbnf", 'root ::= "a"')),
        ({"structural_tag": {"triggers": ["<"]}}, Constraint("structural_tag", '{"triggers": ["<"]}')),
        ({"structural_tag": '{"a": 1}'}, Constraint("structural_tag", '{"a": 1}')),
        ({"regex": "a", "json": None, "json_object": False, "choice": None}, Constraint("regex", "a")),
    ],
)
def test_each_form_becomes_one_constraint(given: dict[str, Any], constraint: Constraint) -> None:
    (kind,) = [name for name, value in given.items() if value and name not in ("whitespace", "strict")] or ["json"]
    expected = replace(constraint, field=f"structured_outputs.{kind}")
    assert StructuredOutputs(**given).constraint() == expected
    assert SamplingParams(structured_outputs=given).structured_outputs == StructuredOutputs(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind", [Person, Point, Row, Colour, list[int], dict[str, float], Literal["a", "b"], int | None]
)
def test_a_type_becomes_its_schema(kind: Any) -> None:
    constraint = StructuredOutputs(json=kind).constraint()
    assert constraint.kind == "json_schema"
    assert isinstance(json.loads(constraint.text), dict)


@pytest.mark.parametrize(
    ("given", "text", "value"),
    [
        ({"json": Person}, '{"name": "Ada", "age": 36}', Person(name="Ada", age=36)),
        ({"json": Point}, '{"x": 1}', Point(1)),
        ({"json": Row}, '{"cells": ["a"]}', {"cells": ["a"]}),
        ({"json": Colour}, '"red"', Colour.RED),
        ({"json": tuple[int, str]}, '[1, "a"]', (1, "a")),
        ({"json": {"type": "array"}}, "[1, null]", [1, None]),
        ({"json_object": True}, '{"a": 1.5}', {"a": 1.5}),
        ({"regex": "[0-9]+"}, "12", "12"),
        ({"choice": ["yes"]}, "yes", "yes"),
        ({"grammar": 'start: "a"'}, "a", "a"),
        ({"structural_tag": {}}, "1", "1"),
    ],
)
def test_a_complete_text_has_a_value(given: dict[str, Any], text: str, value: Any) -> None:
    found = StructuredOutputs(**given).parse(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("given", "text"),
    [({"json": Person}, '{"name": "A'), ({"json": Person}, '{"name": "A", "age": 3}'), ({"json": {}}, "[1")],
)
def test_what_is_no_value_is_a_value_error(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        StructuredOutputs(**given).parse(text)


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({}, "structured_outputs", "exactly one of json, .*, grammar, structural_tag, got none"),
        ({"json": {}, "regex": "a"}, "structured_outputs", "got json, regex"),
        ({"jsn": {}}, "structured_outputs", "no field 'jsn'; there are json,"),
        ({"json": 5}, "structured_outputs.json", "a JSON schema .* or a type, got 5"),
        ({"json": b"{}"}, "structured_outputs.json", "got b'{}'"),
        ({"json": [Person]}, "structured_outputs.json", "a type"),
        ({"json": Person(name="A", age=20)}, "structured_outputs.json", "a type"),
        ({"json": {"a": {1}}}, "structured_outputs.json", "is no JSON: .*set"),
        ({"json": Opaque}, "structured_outputs.json", "Unable to generate pydantic-core schema"),
        ({"json": lambda: 0}, "structured_outputs.json", "got the function"),
        ({"json": Callable[[], int]}, "structured_outputs.json", "has no JSON schema"),
        ({"regex": ""}, "structured_outputs.regex", "not empty, got ''"),
        ({"regex": 5}, "structured_outputs.regex", "a text"),
        ({"grammar": ["a"]}, "structured_outputs.grammar", "a text"),
        ({"grammar": 'start: %json {"enum": [9007199254740993]}'}, "structured_outputs.grammar", "may not hold %json"),
        ({"regex": "a\ud800"}, "structured_outputs.regex", "half of a surrogate pair"),
        ({"grammar": 'start: "\ud800"'}, "structured_outputs.grammar", "half of a surrogate pair"),
        ({"choice": ["a", "\udfff"]}, "structured_outputs.choice", "half of a surrogate pair"),
        ({"json": '{"const": "\ud800"}'}, "structured_outputs.json", "half of a surrogate pair"),
        ({"structural_tag": 5}, "structured_outputs.structural_tag", "a mapping or JSON text, got 5"),
        ({"structural_tag": [{}]}, "structured_outputs.structural_tag", "a mapping or JSON text"),
        ({"structural_tag": {"a": {1}}}, "structured_outputs.structural_tag", "is no JSON: .*set"),
        ({"choice": "ab"}, "structured_outputs.choice", "a list of texts, got 'ab'"),
        ({"choice": []}, "structured_outputs.choice", "none of them empty"),
        ({"choice": ["a", 1]}, "structured_outputs.choice", "none of them empty"),
        ({"regex": "a", "whitespace": "some"}, "structured_outputs.whitespace", "'flexible' or 'compact'"),
        ({"json_object": 1}, "structured_outputs.json_object", "True or False, got 1"),
        ({"json": {}, "strict": "yes"}, "structured_outputs.strict", "True or False"),
    ],
)
def test_what_is_wrong_is_refused_by_name(given: dict[str, Any], param: str, message: str) -> None:
    for make in (StructuredOutputs.of, lambda value: SamplingParams(structured_outputs=value)):
        with pytest.raises(InvalidRequest, match=message) as caught:
            make(given)
        assert caught.value.param == param
        assert str(caught.value).startswith(f"`{param}` ")
        assert len(str(caught.value)) < 400


def test_a_schema_that_is_changed_later_changes_nothing() -> None:
    schema = {"type": "object"}
    params = SamplingParams(structured_outputs=StructuredOutputs(json=schema))
    schema["type"] = "array"
    assert params.structured_outputs is not None
    assert params.structured_outputs.constraint().text == '{"type": "object"}'
    assert hash(params) == hash(pickle.loads(pickle.dumps(params)))


class Limits:
    max_model_len, vocab_size, kv_tokens, platform, embedding = 100, 50, 100, "fake", EmbeddingFacts(8)


def test_the_request_is_held_to_it() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputs(regex="a"))
    request = validated(GenerateRequest("r", (1,), params), Limits())
    assert request.constraint == Constraint("regex", "a", field="structured_outputs.regex")
    assert request.params == SamplingParams()
    with pytest.raises(InvalidRequest, match="has a constraint already"):
        validated(GenerateRequest("r", (1,), params, constraint=Constraint("json_object")), Limits())
    with pytest.raises(InvalidRequest, match="`stop` cannot be combined"):
        validated(GenerateRequest("r", (1,), replace(params, stop=("x",))), Limits())
