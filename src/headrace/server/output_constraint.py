"""Builds the constraint on a request's output from the request's fields."""

from __future__ import annotations

import json

from headrace.errors import InvalidRequest
from headrace.server.schemas import GenerationRequest, ResponseFormat, StructuredOutputsBody
from headrace.structured_outputs import KINDS, StructuredOutputs
from headrace.types import Constraint

__all__ = ["constraint_of"]

_TAG_FIELDS = ("structures", "triggers", "format")
_FIELDS = {"json_schema": "json_schema", **dict.fromkeys(_TAG_FIELDS, "structural_tag")}
"""Fields of `response_format` that belong to one type."""


def constraint_of(body: GenerationRequest) -> Constraint | None:
    """The constraint of a request; None for free text.

    Raises InvalidRequest. Whether the constraint can be enforced is known only when it is compiled.
    """
    response_format = getattr(body, "response_format", None)
    found = None if response_format is None else _of_format(response_format)
    if body.structured_outputs is None:
        return found
    if found is not None:
        message = "`structured_outputs` and `response_format` both constrain the output: give one of them"
        raise InvalidRequest(message, "structured_outputs", "invalid_value")
    return _of_structured(body.structured_outputs)


def _of_format(asked: ResponseFormat) -> Constraint | None:
    for name, kind in _FIELDS.items():
        if asked.type != kind and getattr(asked, name) is not None:
            message = f"`response_format.{name}` is for type {kind}, not {asked.type}"
            raise InvalidRequest(message, f"response_format.{name}", "invalid_value")
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return Constraint("json_object")
    if asked.type == "structural_tag":
        tag = {name: value for name in _TAG_FIELDS if (value := getattr(asked, name)) is not None}
        return Constraint("structural_tag", json.dumps(tag))
    if asked.json_schema is None:
        message = '`response_format.json_schema` is missing: give {"name": …, "schema": {…}}'
        raise InvalidRequest(message, "response_format.json_schema", "invalid_value")
    schema = asked.json_schema
    return Constraint(
        "json_schema", json.dumps(schema.schema), strict=bool(schema.strict), field="response_format.json_schema.schema"
    )


def _of_structured(asked: StructuredOutputsBody) -> Constraint:
    given = {name: value for name in (*KINDS, "whitespace") if (value := getattr(asked, name)) is not None}
    return StructuredOutputs.of(given).constraint()
