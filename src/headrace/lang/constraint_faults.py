"""Finds constraints that no text can meet, as far as this shows without a grammar: the engine's compiler finds the
rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["constraint_fault", "schema_fault"]

_PAIRS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
_MOST_NODES = 10_000


def constraint_fault(constraint: Mapping[str, Any]) -> str | None:
    """Why no text meets the constraint; None if that is not known."""
    schema = constraint.get("json")
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            return "the JSON schema is no JSON"
    return None if schema is None else schema_fault(schema)


def schema_fault(schema: Any) -> str | None:
    """The place and the contradiction in a JSON schema; None if none is found."""
    for count, (place, node) in enumerate(_required_parts(schema, "$")):
        if count > _MOST_NODES:
            return None
        why = _contradiction(node)
        if why is not None:
            return f"{place}: {why}"
    return None


def _required_parts(schema: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The schema and the parts of it that every value must meet."""
    waiting = [(place, schema, 0)]
    while waiting:
        where, node, depth = waiting.pop()
        yield where, node
        if not isinstance(node, Mapping) or depth > 64:
            continue
        properties = node.get("properties")
        required = node.get("required")
        if isinstance(properties, Mapping) and isinstance(required, list):
            waiting += [
                (f"{where}.{name}", properties[name], depth + 1)
                for name in required
                if isinstance(name, str) and name in properties
            ]
        parts = node.get("allOf")
        if isinstance(parts, list):
            waiting += [(f"{where}.allOf[{index}]", part, depth + 1) for index, part in enumerate(parts)]
        if node.get("minItems", 0) and "items" in node:
            waiting.append((f"{where}.items", node["items"], depth + 1))


def _contradiction(node: Any) -> str | None:
    if node is False:
        return "the schema `false` allows no value"
    if not isinstance(node, Mapping):
        return None
    for low, high in _PAIRS:
        least, most = node.get(low), node.get(high)
        if isinstance(least, (int, float)) and isinstance(most, (int, float)) and least > most:
            return f"`{low}` {least} is above `{high}` {most}"
    return _enum_fault(node) or _parts_fault(node) or _missing(node)


def _enum_fault(node: Mapping[str, Any]) -> str | None:
    values = node.get("enum")
    if isinstance(values, list):
        kinds = _types(node.get("type"))
        if not values:
            return "`enum` is empty"
        if "const" in node and node["const"] not in values:
            return "`const` is not in `enum`"
        if kinds is not None and not any(_is_of(value, kinds) for value in values):
            return "no value of `enum` has the `type`"
    return None


def _parts_fault(node: Mapping[str, Any]) -> str | None:
    for name in ("anyOf", "oneOf"):
        parts = node.get(name)
        if isinstance(parts, list) and parts and all(schema is False for schema in parts):
            return f"no schema of `{name}` allows a value"
    return None


def _missing(node: Mapping[str, Any]) -> str | None:
    if node.get("additionalProperties") is not False or not isinstance(node.get("required"), list):
        return None
    known = node.get("properties") or {}
    absent = [name for name in node["required"] if name not in known]
    return (
        f"`required` names {absent[0]!r}, which is no property"
        if absent and not node.get("patternProperties")
        else None
    )


def _types(found: Any) -> list[str] | None:
    names = [found] if isinstance(found, str) else found
    return names if isinstance(names, list) and all(name in _TYPES for name in names) else None


def _is_of(value: Any, kinds: list[str]) -> bool:
    if isinstance(value, bool):
        return "boolean" in kinds
    return any(isinstance(value, _TYPES[kind]) for kind in kinds)
