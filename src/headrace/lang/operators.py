"""The types of a plan's values, and its pure operators.

Types are `text`, `int`, `float`, `bool`, `json` (any JSON value; its use is checked when it runs), `list<T>` of these,
and `state`. Every operator is total or fails with a message, and makes no value larger than `MOST_SIZE`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from headrace.lang.strict_json import parse_json

__all__ = [
    "MOST_BITS",
    "MOST_NESTING",
    "MOST_SIZE",
    "OPERATORS",
    "Operator",
    "as_text",
    "fits",
    "is_deep",
    "is_large",
    "is_type",
    "item_type",
    "joined_type",
    "type_of",
]

MOST_SIZE = 4 << 20
"""Most characters of a text, and entries of a list, that an operator makes."""
MOST_NESTING = 100
"""Most lists and objects inside one another."""
MOST_BITS = 1024
"""Of a whole number that an operator makes: a longer one cannot be written in every case."""
_SIMPLE = frozenset({"text", "int", "float", "bool", "json"})
_PYTHON: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "text"}
_NUMBERS = frozenset({"int", "float", "bool"})
_PLAIN = (str, int, float, type(None))


def is_type(name: str) -> bool:
    """True for the type of a value that is no state."""
    depth = 0
    while name.startswith("list<") and name.endswith(">") and depth < 8:
        name, depth = name[5:-1], depth + 1
    return name in _SIMPLE


def item_type(name: str) -> str | None:
    """The type of a list's entries; json for json; None for what is no list."""
    if name.startswith("list<"):
        return name[5:-1]
    return "json" if name == "json" else None


def type_of(value: Any) -> str:
    """The type of a constant. Raises TypeError for what is no JSON."""
    if type(value) in _PYTHON:
        if isinstance(value, float) and not math.isfinite(value):
            raise TypeError("a number that is not finite is no JSON")
        return _PYTHON[type(value)]
    if isinstance(value, (list, tuple)):
        kinds = {type_of(entry) for entry in value}
        return f"list<{kinds.pop()}>" if len(kinds) == 1 else "list<json>"
    if value is None:
        return "json"
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for entry in value.values():
            type_of(entry)
        return "json"
    raise TypeError(f"{type(value).__name__} is no JSON")


def fits(found: str, wanted: str) -> bool:
    """True if a value of the type may stand where the other is wanted."""
    if found == wanted or "json" in (found, wanted):
        return "state" not in (found, wanted)
    if wanted == "float":
        return found == "int"
    inner, outer = item_type(found), item_type(wanted)
    return inner is not None and outer is not None and fits(inner, outer)


def joined_type(one: str, other: str) -> str:
    """The type of a value that comes from either branch."""
    if one == other:
        return one
    return "float" if {one, other} == {"int", "float"} else "json"


def as_text(value: Any) -> str:
    """A value as part of a text: a text itself, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def is_large(value: Any, most: int = MOST_SIZE, nesting: int = MOST_NESTING) -> bool:
    """True if a value has more than `most` characters and entries, counted as often as they would be written, or more
    than `nesting` lists and objects inside one another."""
    total, level = 0, [value]
    for depth in range(nesting + 1):
        inner: list[Any] = []
        for one in level:
            if not isinstance(one, (str, list, dict)):
                continue
            total += len(one)
            if total > most or (depth == nesting and not isinstance(one, str)):
                return True  # Before the entries are looked at: there may be millions.
            if isinstance(one, dict):
                total += sum(map(len, one))
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        if total > most:
            return True
        level = inner
    return False


def is_deep(value: Any) -> bool:
    """True if more than `MOST_NESTING` lists and objects stand inside one another."""
    return isinstance(value, (list, dict)) and is_large(value, 1 << 62)


@dataclass(frozen=True, slots=True)
class Operator:
    takes: tuple[str, ...]
    """Types of the operands: also `any`, `number`, `list`."""
    gives: Callable[[Sequence[str]], str]
    run: Callable[..., Any]
    """Raises TypeError, ValueError, LookupError, ArithmeticError."""
    any_number: bool = False
    """Takes any number of operands of any type."""

    def result(self, types: Sequence[str]) -> str:
        """The result's type. Raises TypeError with what is wrong."""
        takes = ("any",) * len(types) if self.any_number else self.takes
        if len(types) != len(takes):
            raise TypeError(f"takes {len(takes)} operands, got {len(types)}")
        for found, wanted in zip(types, takes, strict=True):
            if not _takes(found, wanted):
                raise TypeError(f"takes {wanted}, got {found}")
        return self.gives(types)


def _takes(found: str, wanted: str) -> bool:
    if found == "state":
        return False
    if wanted == "any" or found == "json":
        return True
    if wanted == "number":
        return found in _NUMBERS
    return item_type(found) is not None if wanted == "list" else fits(found, wanted)


def _always(name: str) -> Callable[[Sequence[str]], str]:
    return lambda types: name


def _number(types: Sequence[str]) -> str:
    if "json" in types:
        return "json"
    return "float" if "float" in types else "int"


def _plus(types: Sequence[str]) -> str:
    left, right = types
    if "json" in types:
        return "json"
    if left == right == "text":
        return "text"
    if left in _NUMBERS and right in _NUMBERS:
        return _number(types)
    inner, other = item_type(left), item_type(right)
    if inner is not None and other is not None:
        return f"list<{joined_type(inner, other)}>"
    raise TypeError(f"cannot add {left} and {right}: `+` takes two texts, numbers or lists")


def _ordered(types: Sequence[str]) -> str:
    left, right = types
    if "json" in types or left == right == "text" or (left in _NUMBERS and right in _NUMBERS):
        return "bool"
    raise TypeError(f"cannot order {left} and {right}")


def _item(types: Sequence[str]) -> str:
    holder, key = types
    if key == "text" and holder != "json":
        raise TypeError(f"a key is for json, not for {holder}")
    if holder == "text":
        raise TypeError("an index is for lists and json, not for text")
    inner = item_type(holder)
    if inner is None:
        raise TypeError(f"an index is for lists and json, not for {holder}")
    return inner


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    if isinstance(left, list) and isinstance(right, list):
        return left + right
    return _numeric(left) + _numeric(right)


def _numeric(value: Any) -> Any:
    if not isinstance(value, (int, float)):
        raise TypeError(f"takes a number, got {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"takes a text, got {type(value).__name__}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"takes a list, got {type(value).__name__}")
    return value


def _get(holder: Any, key: Any) -> Any:
    if isinstance(holder, dict):
        return holder[_text(key)]
    return _list(holder)[_whole(key)]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"takes a whole number, got {type(value).__name__}")
    return value


def _contains(holder: Any, part: Any) -> bool:
    return _text(part) in holder if isinstance(holder, str) else part in holder


def _mode(values: Any) -> Any:
    """The most frequent entry; of several the one that comes first."""
    entries = _list(values)
    if not entries:
        raise ValueError("an empty list has no most frequent entry")
    keys = [(type(one), one if isinstance(one, _PLAIN) else json.dumps(one, sort_keys=True)) for one in entries]
    return entries[keys.index(Counter(keys).most_common(1)[0][0])]


def _length(value: Any) -> int:
    if not isinstance(value, (str, list, dict)):
        raise TypeError(f"takes a text, a list or an object, got {type(value).__name__}")
    return len(value)


def _replace(text: Any, old: Any, new: Any) -> str:
    whole, part, by = _text(text), _text(old), _text(new)
    if len(whole) + whole.count(part) * max(0, len(by) - len(part)) > MOST_SIZE:
        raise ValueError(f"makes a text of more than {MOST_SIZE} characters")
    return whole.replace(part, by)


def _join(values: Any, separator: Any) -> str:
    parts = [as_text(value) for value in _list(values)]
    if sum(map(len, parts)) + len(_text(separator)) * len(parts) > MOST_SIZE:
        raise ValueError(f"makes a text of more than {MOST_SIZE} characters")
    return str(separator.join(parts))


def _split(text: Any, separator: Any) -> list[str]:
    return _text(text).split(_text(separator))


def _to_int(value: Any) -> int:
    if isinstance(value, str) and len(value) > 400:
        raise ValueError("takes at most 400 digits")
    return int(value)


def _product(left: Any, right: Any) -> Any:
    found = _numeric(left) * _numeric(right)
    if isinstance(found, int) and found.bit_length() > MOST_BITS:
        raise OverflowError(f"the product has more than {MOST_BITS} bits")
    return found


def _operator(takes: str, gives: str | Callable[[Sequence[str]], str], run: Callable[..., Any]) -> Operator:
    return Operator(tuple(takes.split()), _always(gives) if isinstance(gives, str) else gives, run)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"takes true or false, got {type(value).__name__}")
    return value


def _compare(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def run(left: Any, right: Any) -> bool:
        if not (isinstance(left, str) and isinstance(right, str)):
            _numeric(left), _numeric(right)
        return test(left, right)

    return run


def _list_of(types: Sequence[str]) -> str:
    return f"list<{reduce(joined_type, types) if types else 'json'}>"


def _first(types: Sequence[str]) -> str:
    return item_type(types[0]) or "json"


OPERATORS: dict[str, Operator] = {
    "eq": _operator("any any", "bool", lambda a, b: a == b),
    "ne": _operator("any any", "bool", lambda a, b: a != b),
    "lt": _operator("any any", _ordered, _compare(lambda a, b: a < b)),
    "le": _operator("any any", _ordered, _compare(lambda a, b: a <= b)),
    "gt": _operator("any any", _ordered, _compare(lambda a, b: a > b)),
    "ge": _operator("any any", _ordered, _compare(lambda a, b: a >= b)),
    "and": _operator("bool bool", "bool", lambda a, b: _flag(a) and _flag(b)),
    "or": _operator("bool bool", "bool", lambda a, b: _flag(a) or _flag(b)),
    "not": _operator("bool", "bool", lambda a: not _flag(a)),
    "add": _operator("any any", _plus, _add),
    "sub": _operator("number number", _number, lambda a, b: _numeric(a) - _numeric(b)),
    "mul": _operator("number number", _number, _product),
    "floordiv": _operator("number number", _number, lambda a, b: _numeric(a) // _numeric(b)),
    "div": _operator("number number", "float", lambda a, b: _numeric(a) / _numeric(b)),
    "mod": _operator("number number", _number, lambda a, b: _numeric(a) % _numeric(b)),
    "neg": _operator("number", _number, lambda a: -_numeric(a)),
    "strip": _operator("text", "text", lambda a: _text(a).strip()),
    "lower": _operator("text", "text", lambda a: _text(a).lower()),
    "upper": _operator("text", "text", lambda a: _text(a).upper()),
    "replace": _operator("text text text", "text", _replace),
    "startswith": _operator("text text", "bool", lambda a, b: _text(a).startswith(_text(b))),
    "endswith": _operator("text text", "bool", lambda a, b: _text(a).endswith(_text(b))),
    "contains": _operator("any any", "bool", _contains),
    "split": _operator("text text", "list<text>", _split),
    "join": _operator("list text", "text", _join),
    "length": _operator("any", "int", _length),
    "item": _operator("any any", _item, _get),
    "mode": _operator("list", _first, _mode),
    "int": _operator("any", "int", _to_int),
    "float": _operator("any", "float", float),
    "text": _operator("any", "text", as_text),
    "json": _operator("text", "json", lambda a: parse_json(_text(a))),
    "default": _operator("any any", lambda types: joined_type(types[0], types[1]), lambda a, b: b if a is None else a),
    "const": _operator("any", lambda types: types[0], lambda a: a),
    "list": Operator((), _list_of, lambda *entries: list(entries), any_number=True),
}
"""Operators by name."""
