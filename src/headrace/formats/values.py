"""Argument values that are not written as JSON, turned into JSON text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "MOST_REFERENCES",
    "Schemas",
    "json_string",
    "literal_json",
    "parameter_types",
    "schema_types",
    "target_of",
    "type_of",
    "typed_json",
    "with_entities",
    "without_entities",
]

Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schema of the parameters, by function name."""

MOST_REFERENCES = 64
"""That lead from one to another."""
_MAX_LITERAL = 1 << 16
"""Characters of a Python literal that are evaluated; a longer one is text."""
_ENTITIES = {"<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;", "&": "&amp;"}
_ENTITY = re.compile("&(?:lt|gt|quot|apos|amp);")
_CONSTANTS = {"null": "null", "none": "null", "true": "true", "false": "false"}
_UNREADABLE = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)


def with_entities(text: str, characters: str) -> str:
    """The text with these characters as XML entities."""
    return "".join(_ENTITIES[char] if char in characters else char for char in text)


def without_entities(text: str) -> str:
    """The text with XML's five entities as the characters that they stand for."""
    plain = {entity: char for char, entity in _ENTITIES.items()}
    return _ENTITY.sub(lambda found: plain[found.group()], text) if "&" in text else text


def json_string(text: str) -> str:
    """The text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def parameter_types(schemas: Schemas, function: str, parameter: str) -> frozenset[str]:
    """JSON types that a parameter may have; empty if the schema does not say."""
    root = schemas.get(function, {})
    properties = root.get("properties")
    schema = properties.get(parameter) if isinstance(properties, Mapping) else None
    for _ in range(MOST_REFERENCES):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            break
        schema = target_of(root, str(schema["$ref"]))
    return schema_types(schema) if isinstance(schema, Mapping) else frozenset()


def target_of(root: Mapping[str, Any], reference: str) -> Mapping[str, Any] | None:
    """The schema within `root` that a `$ref` leads to; None if there is none."""
    if not reference.startswith("#"):
        return None
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        plain = step.replace("~1", "/").replace("~0", "~")
        found = found if not plain else found.get(plain) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def schema_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """JSON types that a value may have; empty if the schema does not say."""
    stated = schema.get("type")
    if isinstance(stated, str):
        return frozenset({stated})
    if isinstance(stated, list):
        return frozenset(map(str, stated))
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            parts = [schema_types(part) for part in schema[key] if isinstance(part, Mapping)]
            return frozenset[str]().union(*parts) if all(parts) else frozenset()
    listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return frozenset(map(type_of, listed)) if isinstance(listed, list) else frozenset()


def type_of(value: Any) -> str:
    """The JSON type of a value; "integer" for whole numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "string")


def typed_json(text: str, types: frozenset[str]) -> str:
    """JSON text of a value that is written raw if it is a string, and as a JSON or Python literal if not."""
    bare = text.strip()
    if types == {"string"}:
        return json_string(text)
    if bare.lower() in ("null", "none") and (not types or "null" in types):
        return "null"
    found = _literal(bare)
    if found is None or ("string" in types and not _fits(found, types)):
        return json_string(text)
    return found


def literal_json(text: str) -> str:
    """JSON text of a Python or JSON literal; other text becomes a string."""
    bare = text.strip()
    found = _literal(bare)
    return json_string(bare) if found is None else found


def _fits(found: str, types: frozenset[str]) -> bool:
    """Whether a parsed value has one of the types that are not strings."""
    kind = type_of(json.loads(found))
    return kind != "string" and (kind in types or (kind == "integer" and "number" in types))


def _literal(text: str) -> str | None:
    """None if the text is neither JSON nor a Python literal that JSON can hold."""
    if not text:
        return None
    try:
        json.loads(text, parse_constant=_refuse)
        return text
    except _UNREADABLE:
        pass
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if len(text) > _MAX_LITERAL:
        return None
    try:
        dumped = json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
        dumped.encode()
        return dumped
    except _UNREADABLE:
        return None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
