"""From a request's fields to the constraint that its output is held to."""

from __future__ import annotations

import json
from typing import Any

from headrace.errors import InvalidRequest
from headrace.server.schemas import GenerationRequest, ResponseFormat, StructuredOutputs
from headrace.types import Constraint, ConstraintKind

__all__ = ["constraint_of"]


def constraint_of(body: GenerationRequest) -> Constraint | None:
    """None for free text. Raises InvalidRequest; whether it can be enforced is found when it is compiled."""
    asked = getattr(body, "response_format", None)
    found = None if asked is None else _of_format(asked)
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


def _of_structured(asked: StructuredOutputs) -> Constraint:
    kinds = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
    given = [kind for kind in kinds if getattr(asked, kind) not in (None, False)]
    if len(given) != 1:
        message = f"`structured_outputs` wants exactly one of {', '.join(kinds)}, got {', '.join(given) or 'none'}"
        raise InvalidRequest(message, "structured_outputs", "invalid_value")
    kind, value = given[0], getattr(asked, given[0])
    if kind == "structural_tag":
        raise InvalidRequest(
            "`structured_outputs.structural_tag` is not supported", "structured_outputs.structural_tag"
        )
    whitespace = asked.whitespace or "flexible"
    return Constraint(*_text(kind, value), whitespace=whitespace, field=f"structured_outputs.{kind}")


def _text(kind: str, value: Any) -> tuple[ConstraintKind, str]:
    if kind == "json":
        return "json_schema", value if isinstance(value, str) else json.dumps(value)
    if kind == "choice":
        return "choice", json.dumps(value)
    if kind == "grammar":
        return ("gbnf" if "::=" in value else "lark"), value
    return ("json_object", "") if kind == "json_object" else ("regex", value)
