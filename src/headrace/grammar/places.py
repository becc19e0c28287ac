"""Finds the place in a JSON schema that a grammar library's error speaks of."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

__all__ = ["PlacedSchema", "place_of", "resolved", "with_place"]

_KEYS = re.compile(r"Unimplemented keys: (\[.*?\])")
_FORMAT = re.compile(r"Unknown format: (\S+)")
_TYPE = re.compile(r"Invalid type: (.+)")
_KEY = re.compile(r"Expected [^']* for '([^']+)'|^(properties|enum|allOf|anyOf|oneOf|required) must be")

_POSITION = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")
"""In a grammar of our own, which the client has not seen."""
_ONE = (
    "items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LISTS = ("prefixItems", "items", "anyOf", "oneOf", "allOf")
_NAMED = ("properties", "patternProperties", "dependentSchemas")


class PlacedSchema(NamedTuple):
    where: str
    """Where the client gave it, if that is not the constraint itself."""
    schema: Any


def with_place(message: str, schemas: Iterable[PlacedSchema]) -> str:
    """The message, with the place in the first schema that it fits."""
    message = _POSITION.sub("", message)
    for where, schema in schemas:
        place = place_of(message, schema)
        if place is not None:
            return f"at {f'`{where}`, ' if where else ''}{place}: {message}"
    return message


def place_of(message: str, schema: Any) -> str | None:
    """The first place (`#/properties/a`) that the schema's own keywords lead to and that the message fits; None if
    there is none or the message names nothing that could be looked for."""
    wanted = _wanted(message)
    if wanted is None:
        return None
    names, values = wanted
    for where, part in _reachable(schema):
        for name in names:
            if name in part and (values is None or part[name] in values):
                return f"{where}/{name}"
    return None


def _wanted(message: str) -> tuple[list[str], list[Any] | None] | None:
    """Names of keywords, and their values if these matter."""
    found = _KEYS.search(message)
    if found:
        return json.loads(found[1]), None
    for name, expression in (("format", _FORMAT), ("type", _TYPE)):
        found = expression.search(message)
        if found:
            return [name], [found[1]]
    found = _KEY.search(message)
    return None if found is None else ([found[1] or found[2]], None)


def _reachable(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Schemas that the root leads to, breadth first, each once."""
    waiting, seen = deque([("#", schema)]), {"#"}
    while waiting:
        where, part = waiting.popleft()
        if not isinstance(part, dict):
            continue
        yield where, part
        for place, child in _children(where, part, schema):
            if place not in seen:
                seen.add(place)
                waiting.append((place, child))


def _children(where: str, part: Mapping[str, Any], root: Any) -> Iterator[tuple[str, Any]]:
    target = part.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        yield target, resolved(target, root)
    for name in _ONE:
        if name in part:
            yield f"{where}/{name}", part[name]
    for name in _LISTS:
        listed = part.get(name)
        if isinstance(listed, list):
            yield from ((f"{where}/{name}/{at}", child) for at, child in enumerate(listed))
    for name in _NAMED:
        named = part.get(name)
        if isinstance(named, dict):
            yield from ((f"{where}/{name}/{key}", child) for key, child in named.items())


def resolved(target: str, root: Any) -> Any:
    """What a JSON pointer leads to; None if it leads nowhere."""
    found = root
    for segment in target.split("/")[1:]:
        key = unquote(segment).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
