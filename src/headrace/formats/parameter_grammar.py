"""The part of a call's grammar that holds parameters which are written one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.formats.grammar_text import GrammarText, joined, quoted
from headrace.formats.states import CallForm, Part
from headrace.formats.values import MOST_REFERENCES, schema_types, target_of, type_of, with_entities

__all__ = ["ParameterGrammar"]

Schema = Mapping[str, Any]

_ANY: dict[str, Any] = {}
_TYPES = frozenset({"string", "number", "boolean", "null", "object", "array"})
_NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "$comment", "$defs", "definitions"})
"""Keywords that constrain nothing."""
_TEXT_LIMITS = ("pattern", "format")
_TEXT_KEYWORDS = (*_TEXT_LIMITS, "minLength", "maxLength")
_OBJECT_LIMITS = (
    "anyOf", "oneOf", "allOf", "not", "if", "patternProperties", "minProperties", "maxProperties", "propertyNames",
    "dependentRequired", "dependentSchemas", "unevaluatedProperties",
)  # fmt: skip
_LIST_LIMITS = ("prefixItems", "contains", "uniqueItems", "unevaluatedItems")
_VALUE_LIMITS = ("allOf", "not", "if")
_KEY_PATTERN = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
_MOST_LEVELS = 64


class ParameterGrammar:
    """Of one function. Methods return Lark text, and raise ValueError for what cannot be held."""

    def __init__(self, out: GrammarText, form: CallForm, root: Schema, function: str) -> None:
        """`root`: the schema of the parameters. `function`: its name."""
        self._out, self._form, self._root, self._function = out, form, root, function
        self._keys: list[str] = []
        """Of the value that is being described."""
        self._named: dict[tuple[str | None, tuple[Part, ...], str], str] = {}
        """Rules of values that may hold themselves: by key, form and reference."""

    def parameters(self) -> str:
        return self._members(self._resolved(self._root)[0], 0)

    def _members(self, schema: Schema, level: int) -> str:
        """The members of an object in the schema's order, each of which may be left out unless it is required."""
        _refuse(schema, _OBJECT_LIMITS)
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required: Sequence[str] = schema.get("required") or ()
        listed = {**properties, **{key: True for key in required if key not in properties}}
        if not listed:
            return self._free_members(schema, level)
        written = [(self._member(key, value, level), key in required) for key, value in listed.items()]
        if not self._form.separator:
            return " ".join(rule if needed else f"{rule}?" for rule, needed in written)
        return self._separated(written)

    def _free_members(self, schema: Schema, level: int) -> str:
        more = schema.get("additionalProperties")
        if more is False:
            return '""'
        return self._repeated(self._member(None, more if isinstance(more, Mapping) else True, level), 0, None)

    def _repeated(self, rule: str, least: int, most: int | None) -> str:
        if most is not None and (most < least or most == 0):
            if most < least:
                raise ValueError(f"a list of at least {least} and at most {most} items")
            return '""'
        separator = self._out.text(self._form.separator) if self._form.separator else ""
        bounds = "*" if most is None and least < 2 else f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        found = rule if most == 1 else f"{rule} ({separator} {rule}){bounds}"
        return found if least else f"({found})?"

    def _separated(self, written: list[tuple[str, bool]]) -> str:
        """A separator stands before each member but the first that is given."""
        out, separator = self._out, self._out.text(self._form.separator)
        first = rest = out.add("members", '""')
        for rule, needed in reversed(written):
            given = f"{rule} {rest}"
            first = out.add("members", given if needed else f"{given} | {first}")
            rest = out.add("members", f"{separator} {given}" if needed else f"({separator} {rule})? {rest}")
        return first

    # Values with the text around them

    def _member(self, key: str | None, schema: Any, level: int) -> str:
        """A parameter, or a member of an object within one. None: any key."""
        parts = self._form.member if level and self._form.member else self._form.parameter
        self._keys += [] if key is None else [key]
        try:
            return self._written(parts, key, schema, level)
        except ValueError as error:
            raise ValueError(f"{error} of {key!r}" if key is not None else str(error)) from None
        finally:
            del self._keys[len(self._keys) - (key is not None) :]

    def _written(self, parts: Sequence[Part], key: str | None, schema: Any, level: int) -> str:
        if level > _MOST_LEVELS:
            raise ValueError(f"a schema of more than {_MOST_LEVELS} levels")
        schema, reference = self._resolved(_ANY if schema is True else schema)
        place = key, tuple(parts), reference
        if reference and place in self._named:
            return self._named[place]
        name = self._out.reserve("value")
        self._named[place] = name
        at = parts.index(CallForm.VALUE)
        after = "".join(parts[at + 1 :])
        bodies = []
        for word, one in self._variants(schema):
            before = [self._part(part, word, key, parts) for part in parts[:at]]
            bodies.append(f"{self._texts(before)} {self._value(one, after, level + 1)}")
        if not bodies:
            raise ValueError("no value")
        return self._out.define(name, " | ".join(bodies))

    def _part(self, part: Part, word: str, key: str | None, parts: Sequence[Part]) -> Part:
        if part == CallForm.TYPE:
            return word
        if part != CallForm.KEY or key is None:
            return part
        if self._form.escaped:
            return with_entities(key, self._form.escaped)
        follows = parts[parts.index(part) + 1][0]
        if not key or key != key.strip() or follows in key or key[0] in "{}[],":
            raise ValueError("the name")
        return key

    def _texts(self, parts: Sequence[Part]) -> str:
        return " ".join(_KEY_PATTERN if part == CallForm.KEY else self._out.text(part) for part in joined(parts))

    def _variants(self, schema: Schema) -> Iterator[tuple[str, Schema]]:
        """The ways to write a value: (the word for its type, the schema of the values that are written so)."""
        form = self._form
        if not form.types and not form.item:
            yield "", schema
            return
        nested = ("object", "array") if form.item else ()
        constants = ("boolean", "null") if form.constants else ()
        for branch in self._branches(schema):
            _refuse(branch, _VALUE_LIMITS)
            groups: dict[tuple[str, str], list[str]] = {}
            for kind in sorted(schema_types(branch) or _TYPES):
                alone = kind == "string" or kind in nested or kind in constants
                groups.setdefault((form.types.get(kind, ""), kind if alone else ""), []).append(kind)
            for (word, _), kinds in groups.items():
                narrowed = _narrowed(branch, kinds)
                if narrowed is not None:
                    yield word, narrowed

    def _branches(self, schema: Schema) -> list[Schema]:
        """The alternatives of `anyOf` and `oneOf`."""
        keyword = next((name for name in ("anyOf", "oneOf") if name in schema), None)
        if keyword is None:
            return [schema]
        if beside := sorted(set(schema) - _NOTES - {keyword}):
            raise ValueError(f"`{beside[0]}` beside `{keyword}`")
        parts = [self._resolved(part)[0] for part in schema[keyword]]
        if keyword == "oneOf":
            _check_disjoint(parts)
        return [branch for part in parts for branch in self._branches(part)]

    # Values

    def _value(self, schema: Schema, after: str, level: int) -> str:
        """A value and the text after it."""
        form, out = self._form, self._out
        types = schema_types(schema)
        raw = not form.types and not form.item
        if not form.json_values and ("string" in types or (raw and schema == _ANY)):
            end = form.quotes[1] + after
            return self._either(schema, end) if raw and schema != _ANY else self._text_value(schema, end)
        if form.item and types == {"object"}:
            inner = self._members(schema, level)
            return f"{out.text(form.brackets[0])} {inner} {out.text(form.brackets[1] + after)}"
        if form.item and types == {"array"}:
            inner = self._items(schema, level)
            return f"{out.text(form.brackets[2])} {inner} {out.text(form.brackets[3] + after)}"
        held = self._constants(schema) if form.constants and types <= {"boolean", "null"} else ""
        return f"{held or out.schema(self._with_definitions(schema))} {out.text(after) if after else ''}"

    def _constants(self, schema: Schema) -> str:
        """Of a schema for booleans or null alone."""
        values: list[bool | None] = [None] if schema["type"] == "null" else [True, False]
        listed = schema.get("enum", [schema["const"]] if "const" in schema else values)
        words = [self._form.constants[json.dumps(one)] for one in values if one in listed]
        return f"({' | '.join(map(quoted, words))})"

    def _items(self, schema: Schema, level: int) -> str:
        _refuse(schema, _LIST_LIMITS)
        items = schema.get("items", True)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if items is False:
            return self._repeated('""', least, 0)
        return self._repeated(self._written(self._form.item, None, items, level), least, most)

    def _either(self, schema: Schema, after: str) -> str:
        """A text, or a value of another type: nothing marks which of them it is."""
        branches = self._branches(schema)
        if len(branches) == 1 and not _text_limits(branches[0]):
            return self._text_value(branches[0], after)
        texts = [text for one in branches if "string" in schema_types(one) and (text := _narrowed(one, ["string"]))]
        if any(not (set(text) & {*_TEXT_KEYWORDS, "enum", "const"}) for text in texts):
            return self._text_value({}, after)
        found = [self._text_value(text, after) for text in texts]
        for one in branches:
            kinds = sorted(schema_types(one) - {"string"})
            other = _narrowed({key: held for key, held in one.items() if key not in _TEXT_KEYWORDS}, kinds)
            if not kinds or other is None:
                continue
            if set(other) != {"type"} and any(map(_text_limits, texts)):
                # A text that fits the pattern could be read as such a value, beyond its limits.
                raise ValueError(f"`{min(set(other) - {'type'})}` beside a text with `pattern` or `format`")
            found.append(f"{self._out.schema(self._with_definitions(other))} {self._out.text(after)}")
        if not found:
            raise ValueError("no value")
        return f"({' | '.join(found)})"

    def _text_value(self, schema: Schema, after: str) -> str:
        out = self._out
        opened = out.text(self._form.quotes[0]) + " " if self._form.quotes[0] else ""
        listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if limits := _text_limits(schema):
            if isinstance(listed, list):
                limits["enum"] = [item for item in listed if isinstance(item, str)]
            limits |= {name: schema[name] for name in ("minLength", "maxLength") if name in schema}
            place = " of ".join(map(repr, reversed(self._keys)))
            return opened + out.limited(after, limits, f"{self._function}: {place}" if place else self._function)
        if isinstance(listed, list):
            if not listed:
                raise ValueError("no value")
            texts = [item if isinstance(item, str) else json.dumps(item) for item in listed]
            return f"{opened}({' | '.join(map(quoted, texts))}) {out.text(after)}"
        least, most = _count(schema, "minLength") or 0, _count(schema, "maxLength")
        length = "*" if not least and most is None else f"{{{least},{'' if most is None else most}}}"
        return opened + out.until(after, length)

    # References

    def _resolved(self, schema: Any) -> tuple[Schema, str]:
        """(the schema that a reference leads to, the reference; "" without one)"""
        if not isinstance(schema, Mapping):
            raise ValueError(f"the schema {schema!r}")
        reference = ""
        for _ in range(MOST_REFERENCES):
            if "$ref" not in schema:
                return schema, reference or ("any" if not set(schema) - _NOTES else "")
            if beside := sorted(set(schema) - _NOTES - {"$ref"}):
                raise ValueError(f"`{beside[0]}` beside `$ref`")
            reference = str(schema["$ref"])
            schema = self._target(reference)
        raise ValueError(f"the $ref {reference!r:.100}, which leads to itself")

    def _target(self, reference: str) -> Schema:
        found = target_of(self._root, reference)
        if found is None:
            raise ValueError(f"the $ref {reference!r:.100}")
        return found

    def _with_definitions(self, schema: Schema) -> Schema:
        named = {name: self._root[name] for name in ("$defs", "definitions") if name in self._root}
        return {**schema, **named} if named and '"$ref"' in json.dumps(schema) else schema


def _text_limits(schema: Schema) -> dict[str, Any]:
    return {name: schema[name] for name in _TEXT_LIMITS if schema.get(name) not in (None, False)}


def _count(schema: Schema, name: str) -> int | None:
    value = schema.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != int(value):
        raise ValueError(f"`{name}` {value!r:.40}, which is no count,")
    return int(value)


def _refuse(schema: Schema, keywords: Sequence[str]) -> None:
    for keyword in keywords:
        if schema.get(keyword) not in (None, False):
            raise ValueError(f"`{keyword}`")


def _narrowed(schema: Schema, kinds: list[str]) -> Schema | None:
    """The schema for values of these types alone; None if there are none."""
    allowed = {*kinds, "integer"} if "number" in kinds else set(kinds)
    found = {key: value for key, value in schema.items() if key not in _NOTES}
    if isinstance(schema.get("enum"), list):
        found["enum"] = [value for value in schema["enum"] if type_of(value) in allowed]
        if not found["enum"]:
            return None
    if "const" in schema and type_of(schema["const"]) not in allowed:
        return None
    return {**found, "type": kinds[0] if len(kinds) == 1 else kinds}


def _check_disjoint(parts: Sequence[Schema]) -> None:
    seen: set[str] = set()
    for part in parts:
        types = schema_types(part)
        types |= {"integer"} if "number" in types else frozenset()
        if not types or seen & types:
            raise ValueError("`oneOf` whose alternatives may overlap")
        seen |= types
