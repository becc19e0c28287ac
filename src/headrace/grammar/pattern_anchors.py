"""Expressions that match any part of a text, as expressions that match the whole text."""

from __future__ import annotations

import re

__all__ = ["whole"]

_ANY = r"(?:.|\n)*"
_PARTS = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])*\]|\((?:\?(?::|P?<\w+>))?|.", re.DOTALL)
_REPEATS = ("*", "+", "?", "{")
_Parts = list[str]
"""Escapes, classes, the beginnings of groups, and single characters."""


def whole(expression: str) -> str:
    """The expression with any text around it, except where `^` and `$` hold it to the edges. Raises ValueError for an
    anchor that is elsewhere."""
    return _either(_PARTS.findall(expression), left=True, right=True)


def _either(parts: _Parts, left: bool, right: bool) -> str:
    """Alternatives. `left`, `right`: whether any text may stand before and behind them."""
    found: list[_Parts] = [[]]
    depth = 0
    for part in parts:
        depth = _inside(part, depth)
        if part == "|" and not depth:
            found.append([])
        else:
            found[-1].append(part)
    if depth:
        raise ValueError("has a ( without its )")
    return f"(?:{'|'.join(_sequence(one, left, right) for one in found)})"


def _sequence(parts: _Parts, left: bool, right: bool) -> str:
    while left and parts[:1] == ["^"]:
        parts, left = parts[1:], parts[1:2] == ["^"]
    while right and parts[-1:] == ["$"]:
        parts, right = parts[:-1], parts[-2:-1] == ["$"]
    head = tail = ""
    if left and _anchored(group := parts[: _group_end(parts)]):
        alone = len(group) == len(parts)
        head = group[0] + _either(group[1:-1], True, right and alone) + ")"
        parts, left, right = parts[len(group) :], False, right and not alone
    if right and _anchored(group := parts[_group_start(parts) :]):
        tail = group[0] + _either(group[1:-1], False, True) + ")"
        parts, right = parts[: -len(group)], False
    if _anchored(parts):
        raise ValueError("^ and $ are supported at the edges alone")
    if parts and parts[0] in _REPEATS:
        raise ValueError("repeats an anchor or nothing")
    return f"{_ANY * left}{head}{''.join(parts)}{tail}{_ANY * right}"


def _anchored(parts: _Parts) -> bool:
    return "^" in parts or "$" in parts


def _group_end(parts: _Parts) -> int:
    """The number of parts of a group at the beginning; 0 if there is none."""
    depth = 0
    for at, part in enumerate(parts):
        depth = _inside(part, depth)
        if not depth:
            return at + 1 if part == ")" else 0
    return 0


def _group_start(parts: _Parts) -> int:
    """Where a group at the end begins; the number of parts if there is none."""
    if parts[-1:] != [")"]:
        return len(parts)
    depth = 0
    for at in range(len(parts) - 1, -1, -1):
        depth += (parts[at] == ")") - parts[at].startswith("(")
        if not depth:
            return at
    return len(parts)


def _inside(part: str, depth: int) -> int:
    """How many groups are open behind the part."""
    depth += part.startswith("(") - (part == ")")
    if depth < 0:
        raise ValueError("has a ) without its (")
    return depth
