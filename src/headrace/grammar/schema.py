"""Checks of a JSON schema that come before a library compiles it: what would be enforced wrongly is refused.

Source of the rules: JSON Schema draft 2020-12, and the library's behaviour over the JSON-Schema-Test-Suite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from headrace.errors import InvalidRequest, excerpt
from headrace.grammar.pattern import translated
from headrace.grammar.rewriting import asks_for_nothing, with_orders
from headrace.grammar.string_formats import FORMATS

__all__ = ["Dialect", "checked_schema"]

_MAX_DEPTH = 100
_MAX_EXACT = 2**53
"""The largest integer that a double holds exactly, as the library's numbers are."""
_MOST_PROPERTIES = 2000
"""Of one object; the library's time grows with their square."""
_LARGEST_DIVISOR = 100_000
"""For `multipleOf`; the library needs a state for each remainder."""
_NUMBERS = ("const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_DATA = ("const", "enum", "default", "examples")
"""Keywords whose values are data, not schemas."""
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose values hold schemas by names that the client chooses."""
_CONSTANTS = ("/const", "/enum")
_INTERSECTED = ("email", "ipv6")
"""Formats whose form in the library is narrower than ours: with a pattern beside it, it is right as well."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f]")


class Dialect(NamedTuple):
    """The expressions of a library."""

    translated: Callable[[str], str]
    """A pattern of ECMA-262 as an expression of the library. Raises ValueError for what has no equal there."""
    formats: Mapping[str, str]
    """Formats that become patterns."""


_RUST = Dialect(translated, FORMATS)


def checked_schema(text: str, strict: bool, dialect: Dialect = _RUST) -> dict[str, Any] | bool:
    """The schema, with its keys in their order and without options for the library. Raises InvalidRequest."""
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _refusal(f"is nested deeper than {_MAX_DEPTH} levels") from None
    except ValueError as error:
        raise _refusal(f"is not valid JSON: {error}") from None
    if not isinstance(schema, (dict, bool)):
        raise _refusal(f"must be an object, not {type(schema).__name__}")
    half = _half_pair(schema, "#")
    if half is not None:
        raise _refusal(f"at {half}: has half of a surrogate pair, which is no character")
    checked = _checked(schema, strict, dialect, "#", 0)
    assert isinstance(checked, (dict, bool))
    return checked


def _checked(value: Any, strict: bool, dialect: Dialect, where: str, depth: int) -> Any:
    """A schema, or a value that holds schemas."""
    if depth > _MAX_DEPTH:
        raise _refusal(f"is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, list):
        return [_checked(item, strict, dialect, f"{where}/{at}", depth + 1) for at, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    _check_numbers(value, where)
    _check_properties(value, where)
    _check_reference(value, where)
    if strict:
        _check_strict(value, where)
    found: dict[str, Any] = {}
    for name, item in value.items():
        if name == "x-guidance" or asks_for_nothing(name, value):
            continue
        if name == "enum" or (name == "const" and "enum" not in value):
            keyword, constants = with_orders(name, item)
            found[keyword] = constants
        elif name in _DATA:
            found[name] = item
        elif name == "pattern" and isinstance(item, str):
            found[name] = _translated(item, dialect, f"{where}/{name}")
        elif name in _NAMED and isinstance(item, dict):
            found[name] = {
                (_translated(key, dialect, f"{where}/{name}") if name == "patternProperties" else key): _checked(
                    part, strict, dialect, f"{where}/{name}/{key}", depth + 1
                )
                for key, part in item.items()
            }
            if len(found[name]) != len(item):
                raise _refusal(f"at {where}/{name}: two patterns mean the same")
        else:
            found[name] = _checked(item, strict, dialect, f"{where}/{name}", depth + 1)
    return _with_exact_format(found, dialect, where)


def _with_exact_format(schema: dict[str, Any], dialect: Dialect, where: str) -> dict[str, Any]:
    """Formats as expressions that admit what their specifications do."""
    form = schema.get("format")
    if form == "unknown":
        # The library takes this one name for any text.
        raise _refusal(f"at {where}/format: Unknown format: unknown")
    pattern = dialect.formats.get(form) if isinstance(form, str) else None
    if pattern is None or (form in _INTERSECTED and "pattern" in schema):
        return schema
    if "pattern" in schema:
        raise _refusal(f"at {where}: format {form!r} beside 'pattern' cannot be enforced: leave one out")
    return {
        ("pattern" if name == "format" else name): (pattern if name == "format" else item)
        for name, item in schema.items()
    }


def _translated(pattern: str, dialect: Dialect, where: str) -> str:
    try:
        return dialect.translated(pattern)
    except ValueError as error:
        raise _refusal(f"at {where}: {error}") from None


def _check_numbers(schema: Mapping[str, Any], where: str) -> None:
    for name in _NUMBERS:
        _check_exact(schema.get(name), f"{where}/{name}")
    divisor = schema.get("multipleOf")
    if isinstance(divisor, (int, float)) and divisor > _LARGEST_DIVISOR:
        raise _refusal(f"at {where}/multipleOf: {divisor} is above {_LARGEST_DIVISOR}: too many states")
    _check_exact(schema.get("enum"), f"{where}/enum")
    for name in ("const", "enum", "properties", "required"):
        _check_characters(schema.get(name), f"{where}/{name}")


def _check_exact(value: Any, where: str) -> None:
    """Numbers beyond 2^53 would be rounded, at any depth of a constant."""
    if isinstance(value, bool):
        return
    if isinstance(value, (int, float)) and abs(value) > _MAX_EXACT:
        raise _refusal(f"at {where}: {str(value)[:40]} is beyond 2^53, where numbers are not exact")
    if isinstance(value, (list, dict)):
        for at, item in enumerate(value.values() if isinstance(value, dict) else value):
            _check_exact(item, f"{where}/{at}")


def _half_pair(value: Any, where: str) -> str | None:
    """The place of the first name or text with a lone surrogate, which no output can hold."""
    if isinstance(value, str):
        return where if _SURROGATE.search(value) else None
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in entries:
        found = _half_pair(str(key), where) or _half_pair(item, f"{where}/{key}")
        if found is not None:
            return found
    return None


def _check_characters(value: Any, where: str) -> None:
    """Texts have no escapes with `\\u`, so that no name can be written in two ways; these characters need one."""
    if isinstance(value, str) and _ESCAPED.search(value):
        raise _refusal(f"at {where}: {excerpt(value, 60)} has a control character that cannot be written")
    if isinstance(value, (list, dict)):
        for item in (*value, *(value.values() if isinstance(value, dict) and where.endswith(_CONSTANTS) else ())):
            _check_characters(item, where)


def _check_properties(schema: Mapping[str, Any], where: str) -> None:
    """Not too many; and free keys may repeat, so that they cannot be counted, while required ones are unique."""
    properties = schema.get("properties")
    if isinstance(properties, dict) and len(properties) > _MOST_PROPERTIES:
        raise _refusal(
            f"at {where}/properties: has {len(properties)} properties, and at most {_MOST_PROPERTIES} can be used"
        )
    least, required = schema.get("minProperties"), schema.get("required")
    named = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, (int, float)) and not isinstance(least, bool) and least >= 2 and least > named:
        raise _refusal(
            f"at {where}: minProperties {least} cannot be enforced over free keys: list the properties in `required`"
        )


def _check_reference(schema: Mapping[str, Any], where: str) -> None:
    """A reference into data would use as a schema what was not checked as one."""
    target = schema.get("$ref")
    if not isinstance(target, str):
        return
    before = ""
    for segment in unquote(target).split("/"):
        if segment in _DATA and before not in _NAMED:
            raise _refusal(f"at {where}: $ref {target[:80]!r} points into {segment!r}, which holds data: use $defs")
        before = segment


def _check_strict(schema: Mapping[str, Any], where: str) -> None:
    """OpenAI's rules for `strict`: the root is an object; every property is required, and no other is allowed."""
    properties, kind = schema.get("properties"), schema.get("type")
    if where == "#" and kind != "object":
        raise _refusal("needs `type: object` at its root if it is `strict`")
    if properties is None and (kind == "object" or (isinstance(kind, list) and "object" in kind)):
        properties = {}
    if not isinstance(properties, dict):
        return
    required = schema.get("required")
    missing = sorted(set(properties) - set(map(str, required if isinstance(required, list) else [])))
    if missing:
        raise _refusal(f"at {where}: `strict` wants every property in `required`, and {missing[0]!r} is not")
    if schema.get("additionalProperties") is not False:
        raise _refusal(f"at {where}: `strict` wants `additionalProperties: false`")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _refusal(why: str) -> InvalidRequest:
    return InvalidRequest(f"the JSON schema {why}", "response_format", "invalid_schema")
