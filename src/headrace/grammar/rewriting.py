"""Rewrites of a JSON schema that keep its meaning: what asks for nothing is left out, constants get all orders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["asks_for_nothing", "with_orders"]

_MOST_ORDERS = 24
"""Of one constant: four keys, or three beside two."""
_EMPTY: tuple[Any, ...] = (True, {})
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "not": (False,),
    "propertyNames": _EMPTY,
    "unevaluatedItems": _EMPTY,
    "unevaluatedProperties": _EMPTY,
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
}
"""Values without effect of keywords that the library refuses."""
_NEEDS = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
"""Keywords without effect if another is absent."""


def asks_for_nothing(name: str, schema: Mapping[str, Any]) -> bool:
    """Whether a keyword of this schema has no effect, by the specification."""
    value = schema[name]
    if any(type(value) is type(neutral) and value == neutral for neutral in _NEUTRAL.get(name, ())):
        return True
    if name in _NEEDS and _NEEDS[name] not in schema:
        return True
    if name == "if":
        return "then" not in schema and "else" not in schema
    if name in ("contains", "minContains"):
        return schema.get("minContains") == 0 and "maxContains" not in schema
    most = schema.get("maxItems")
    return name == "uniqueItems" and isinstance(most, (int, float)) and most <= 1


def with_orders(name: str, value: Any) -> tuple[str, Any]:
    """`const` or `enum` and its value. Constants that hold objects get an entry for each order of their keys, unless
    these are more than a few: then they keep the order in which they are written."""
    listed = value if name == "enum" else [value]
    if not isinstance(listed, list) or not any(isinstance(one, (dict, list)) for one in listed):
        return name, value
    found = [order for one in listed for order in (_orders(one) if _count(one) <= _MOST_ORDERS else [one])]
    return (name, value) if len(found) == len(listed) else ("enum", found)


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return math.factorial(min(len(value), 20)) * math.prod(map(_count, value.values()))
    return math.prod(map(_count, value)) if isinstance(value, list) else 1


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        yield from map(list, itertools.product(*map(list, map(_orders, value))))
    elif isinstance(value, dict):
        for keys in itertools.permutations(value):
            for values in itertools.product(*(list(_orders(value[key])) for key in keys)):
                yield dict(zip(keys, values, strict=True))
    else:
        yield value
