"""Schemas reduced to the few keywords that xgrammar enforces truthfully; whatever else asks for something is refused.

xgrammar accepts what it cannot enforce, without a word: `not`, `contains`, keywords without a `type`, bounds beside an
`anyOf`, required names that no property lists, free keys that spell a listed name by escapes, a quotation mark that a
pattern asks for, and more. So nothing reaches it that is not on the list below.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import InvalidRequest, excerpt
from headrace.grammar.places import resolved
from headrace.grammar.plain_regex import plain
from headrace.grammar.schema import Dialect, checked_schema
from headrace.grammar.string_formats import PLAIN_FORMATS

__all__ = ["plain_schema"]

_FOR_TYPE: dict[str, tuple[str, ...]] = {
    "object": (
        "properties", "required", "additionalProperties", "minProperties", "maxProperties", "patternProperties",
        "propertyNames", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties",
    ),
    "array": (
        "prefixItems", "items", "minItems", "maxItems", "additionalItems", "contains", "minContains", "maxContains",
        "uniqueItems", "unevaluatedItems",
    ),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "boolean": (),
    "null": (),
}  # fmt: skip
"""Keywords by the type of the values that they speak of."""
_NUMERIC = ("integer", "number")
_REFUSED = ("not", "if", "then", "else", "oneOf", "$dynamicRef", "$recursiveRef", "$id", "disallow", "extends")
_MOST = 1_000
"""Items of an array and characters of a string: the time of a step grows with them."""
_DISTINCT = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


@functools.lru_cache(maxsize=1)
def _dialect() -> Dialect:
    reduced = functools.partial(plain, in_json=True)
    return Dialect(reduced, {name: reduced(pattern) for name, pattern in PLAIN_FORMATS.items()})


def plain_schema(text: str, strict: bool) -> str:
    """The JSON text of an equal schema of these keywords, each schema with one type. Raises InvalidRequest."""
    schema = checked_schema(text, strict, _dialect())
    return json.dumps(_Reducer(schema).root())


class _Reducer:
    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._names: dict[str, str] = {}
        self._waiting: list[tuple[str, str]] = []

    def root(self) -> dict[str, Any]:
        found = self.part(self._schema, "#")
        definitions: dict[str, Any] = {}
        while self._waiting:
            target, name = self._waiting.pop()
            definitions[name] = self.part(resolved(target, self._schema), target)
        return found | ({"$defs": definitions} if definitions else {})

    def part(self, schema: Any, where: str) -> dict[str, Any]:
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            raise _refusal(where, "allows nothing" if schema is False else f"is no schema: {excerpt(schema, 40)}")
        for name in _REFUSED:
            if name in schema and (name != "$id" or where != "#"):
                raise _refusal(f"{where}/{name}", f"`{name}` cannot be enforced by this grammar backend")
        if "$ref" in schema:
            return self._reference(schema, where)
        if "const" in schema or "enum" in schema:
            return self._constants(schema, where)
        for name in ("anyOf", "allOf"):
            if name in schema:
                return self._combined(schema, name, where)
        return self._typed(schema, where)

    def _reference(self, schema: Mapping[str, Any], where: str) -> dict[str, Any]:
        _alone(schema, ("$ref",), where)
        target, seen = schema["$ref"], set[str]()
        while True:
            if not isinstance(target, str) or not target.startswith("#") or not (target == "#" or target[1] == "/"):
                raise _refusal(where, f"$ref {excerpt(target, 60)} does not point into this schema")
            if target in seen:
                raise _refusal(where, f"$ref {excerpt(target, 60)} leads back to itself")
            seen.add(target)
            found = resolved(target, self._schema)
            if not isinstance(found, dict) or "$ref" not in found:
                break
            _alone(found, ("$ref",), target)
            target = found["$ref"]
        if found is None:
            raise _refusal(where, f"$ref {excerpt(target, 60)} leads nowhere")
        if target not in self._names:
            self._names[target] = f"d{len(self._names)}"
            self._waiting.append((target, self._names[target]))
        return {"$ref": f"#/$defs/{self._names[target]}"}

    def _constants(self, schema: Mapping[str, Any], where: str) -> dict[str, Any]:
        _alone(schema, ("const", "enum", "type"), where)
        if "const" in schema and "enum" in schema:
            raise _refusal(where, "const beside enum cannot be enforced by this grammar backend")
        listed = schema["enum"] if "enum" in schema else [schema["const"]]
        if not isinstance(listed, list):
            raise _refusal(f"{where}/enum", "is no list")
        types = _types(schema, where) if "type" in schema else None
        kept = [value for value in listed if types is None or any(_is(value, name) for name in types)]
        if not kept:
            raise _refusal(where, "allows nothing")
        return {"enum": kept}

    def _combined(self, schema: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
        _alone(schema, (name,), where)
        listed = schema[name]
        if not isinstance(listed, list) or not listed:
            raise _refusal(f"{where}/{name}", "is no list of schemas")
        if name == "allOf" and len(listed) > 1:
            raise _refusal(f"{where}/allOf", "allOf of several schemas cannot be enforced by this grammar backend")
        parts = [self.part(one, f"{where}/{name}/{at}") for at, one in enumerate(listed)]
        return parts[0] if name == "allOf" else {"anyOf": parts}

    def _typed(self, schema: Mapping[str, Any], where: str) -> dict[str, Any]:
        """One schema for each type: the library drops keywords that stand without a type."""
        kinds = _types(schema, where) if "type" in schema else list(_FOR_TYPE)
        if "type" not in schema and not _asking(schema):
            return {}
        parts = [self._of_type(kind, schema, where) for kind in kinds]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}

    def _of_type(self, kind: str, schema: Mapping[str, Any], where: str) -> dict[str, Any]:
        own = _FOR_TYPE["number" if kind in _NUMERIC else kind]
        given = {name: schema[name] for name in own if name in schema}
        readers: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
            "object": self._object, "array": self._array, "string": _string, "integer": _integer, "number": _number,
        }  # fmt: skip
        return {"type": kind} | (readers[kind](given, where) if given else {})

    def _object(self, given: dict[str, Any], where: str) -> dict[str, Any]:
        properties, required = given.pop("properties", {}), given.pop("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise _refusal(where, "properties are an object, and required is a list")
        free = given.pop("additionalProperties", True)
        least, most = given.pop("minProperties", 0), given.pop("maxProperties", math.inf)
        _nothing_left(given, where)
        unlisted = next((name for name in required if name not in properties), None)
        if unlisted is not None:
            raise _refusal(f"{where}/required", f"{excerpt(unlisted, 40)} is not among the properties")
        if not _count(least) or least > len(set(required)):
            raise _refusal(f"{where}/minProperties", "cannot be enforced by this grammar backend")
        if most != math.inf and (not _count(most) or free is not False or most < len(properties)):
            raise _refusal(f"{where}/maxProperties", "cannot be enforced by this grammar backend")
        if not properties:
            inner = free if isinstance(free, bool) else self.part(free, f"{where}/additionalProperties")
            return {"additionalProperties": inner}
        if free is not False:
            raise _refusal(
                where, "other properties beside listed ones cannot be enforced: set `additionalProperties: false`"
            )
        parts = {name: self.part(one, f"{where}/properties/{name}") for name, one in properties.items()}
        return {"properties": parts, "required": required, "additionalProperties": False}

    def _array(self, given: dict[str, Any], where: str) -> dict[str, Any]:
        prefix, items = given.pop("prefixItems", []), given.pop("items", True)
        least, most = given.pop("minItems", 0), given.pop("maxItems", math.inf)
        _nothing_left(given, where)
        if not isinstance(prefix, list) or isinstance(items, list):
            raise _refusal(where, "prefixItems are a list, and items is a schema")
        for name, count in (("minItems", least), ("maxItems", most)):
            if count != math.inf and (not _count(count) or count > _MOST):
                raise _refusal(f"{where}/{name}", f"{excerpt(count, 40)} is no count of at most {_MOST}")
        if most <= len(prefix):
            prefix, items, most = prefix[: int(most)], False, math.inf
        if least > most or (items is False and least > len(prefix)):
            raise _refusal(where, "allows nothing")
        found: dict[str, Any] = {"minItems": int(least)} if least else {}
        if most != math.inf:
            found["maxItems"] = int(most)
        if prefix:
            found["prefixItems"] = [self.part(one, f"{where}/prefixItems/{at}") for at, one in enumerate(prefix)]
        found["items"] = items if isinstance(items, bool) else self.part(items, f"{where}/items")
        return found


def _string(given: dict[str, Any], where: str) -> dict[str, Any]:
    if "format" in given:
        raise _refusal(f"{where}/format", f"Unknown format: {excerpt(given['format'], 40)}")
    if "pattern" in given:
        beside = next((name for name in ("minLength", "maxLength") if name in given), None)
        if beside is not None or not isinstance(given["pattern"], str):
            raise _refusal(where, f"`pattern` beside `{beside}` cannot be enforced by this grammar backend")
        return given
    for name, value in given.items():
        if not _count(value) or value > _MOST:
            raise _refusal(f"{where}/{name}", f"{excerpt(value, 40)} is no count of at most {_MOST}")
    if given.get("minLength", 0) > given.get("maxLength", math.inf):
        raise _refusal(where, "allows nothing")
    return {name: int(count) for name, count in given.items()}


def _integer(given: dict[str, Any], where: str) -> dict[str, Any]:
    low, high, open_low, open_high = _bounds(given, where)
    found: dict[str, Any] = {}
    if low != -math.inf:
        found["minimum"] = math.floor(low) + 1 if open_low else math.ceil(low)
    if high != math.inf:
        found["maximum"] = math.ceil(high) - 1 if open_high else math.floor(high)
    if found.get("minimum", -math.inf) > found.get("maximum", math.inf):
        raise _refusal(where, "allows nothing")
    return found


def _number(given: dict[str, Any], where: str) -> dict[str, Any]:
    low, high, open_low, open_high = _bounds(given, where)
    if low > high or (low == high and (open_low or open_high)):
        raise _refusal(where, "allows nothing")
    found: dict[str, Any] = {}
    if low != -math.inf:
        found["exclusiveMinimum" if open_low else "minimum"] = low
    if high != math.inf:
        found["exclusiveMaximum" if open_high else "maximum"] = high
    return found


def _bounds(given: dict[str, Any], where: str) -> tuple[float, float, bool, bool]:
    """The lower and the upper bound, and whether each is excluded."""
    found: dict[str, float] = {}
    for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        value = given.pop(name, math.inf if "Max" in name or "max" in name else -math.inf)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _refusal(f"{where}/{name}", f"{excerpt(value, 40)} is no number")
        found[name] = value
    _nothing_left(given, where)
    low, open_low = found["minimum"], found["exclusiveMinimum"] >= found["minimum"]
    high, open_high = found["maximum"], found["exclusiveMaximum"] <= found["maximum"]
    low, high = max(low, found["exclusiveMinimum"]), min(high, found["exclusiveMaximum"])
    return low, high, open_low, open_high


def _types(schema: Mapping[str, Any], where: str) -> list[str]:
    given = schema["type"]
    kinds = given if isinstance(given, list) else [given]
    for kind in kinds:
        if not isinstance(kind, str) or kind not in (*_FOR_TYPE, "integer"):
            raise _refusal(f"{where}/type", f"Invalid type: {excerpt(kind, 40)}")
    if not kinds:
        raise _refusal(f"{where}/type", "is an empty list")
    return [kind for kind in dict.fromkeys(kinds) if not (kind == "integer" and "number" in kinds)]


def _is(value: Any, kind: str) -> bool:
    if kind in _NUMERIC:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and (kind == "number" or float(value).is_integer())
    return isinstance(value, _DISTINCT[kind])


def _asking(schema: Mapping[str, Any]) -> list[str]:
    """The keywords of a schema that ask for something."""
    known = {name for names in _FOR_TYPE.values() for name in names} | {
        "type",
        "anyOf",
        "allOf",
        "enum",
        "const",
        "$ref",
    }
    return [name for name in schema if name in known]


def _alone(schema: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    other = next((name for name in _asking(schema) if name not in names), None)
    if other is not None:
        raise _refusal(
            where,
            f"`{other}` beside `{next(n for n in names if n in schema)}` cannot be enforced by this grammar backend",
        )


def _nothing_left(given: dict[str, Any], where: str) -> None:
    for name in given:
        raise _refusal(f"{where}/{name}", f"`{name}` cannot be enforced by this grammar backend")


def _count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 and float(value).is_integer()


def _refusal(where: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"the JSON schema at {where}: {why}", "response_format", "invalid_schema")
