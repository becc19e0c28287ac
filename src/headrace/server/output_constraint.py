"""Builds the constraint on a request's output from the request's fields."""

from __future__ import annotations

import json

from headrace.errors import InvalidRequest
from headrace.server.schemas import GenerationRequest, ResponseFormat, StructuredOutputsBody
from headrace.structured_outputs import KINDS, StructuredOutputs
from headrace.types import Constraint

__all__ = ["constraint_of"]


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
    if asked.type != "json_schema" and asked.json_schema is not None:
        message = f"`response_format.json_schema` is for type json_schema, not {asked.type}"
        raise InvalidRequest(message, "response_format.json_schema", "invalid_value")
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return Constraint("json_object")
    if asked.json_schema is None:
        message = '`response_format.json_schema` is missing: give {"name": …, "schema": {…}}'
        raise InvalidRequest(message, "response_format.json_schema", "invalid_value")
    schema = asked.json_schema
    return Constraint(
        "json_schema", json.dumps(schema.schema), strict=bool(schema.strict), field="response_format.json_schema.schema"
    )


def _of_structured(asked: StructuredOutputsBody) -> Constraint:
    if asked.structural_tag is not None:
        raise InvalidRequest(
            "`structured_outputs.structural_tag` is not supported", "structured_outputs.structural_tag"
        )
    given = {name: value for name in (*KINDS, "whitespace") if (value := getattr(asked, name)) is not None}
    return StructuredOutputs.of(given).constraint()
