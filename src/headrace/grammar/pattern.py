"""Patterns of JSON schemas, which are ECMA-262's expressions, as the library's: Rust's, which differ in small things."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["translated"]

_SPACE = r"\t\n\x0b\x0c\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
"""ECMA-262's white space and line terminators: with U+FEFF, without U+0085."""
_LETTERS = frozenset("dDwWsStnrvfpPux")
"""Letters that may stand behind a backslash and mean the same in both languages, once `s` and `S` are written out."""
_SET_OPERATORS = frozenset("[&~")
"""Characters of a class that may mean a nested class or an operation on sets in Rust, and themselves in ECMA-262."""


def translated(pattern: str) -> str:
    """The same expression for the library. Raises ValueError for what has another meaning there or none."""
    return "".join(_parts(pattern))


def _parts(pattern: str) -> Iterator[str]:
    at, in_class = 0, False
    while at < len(pattern):
        char, rest = pattern[at], pattern[at + 1 :]
        width, part = 1, char
        if char == "\\":
            width, part = 2, _escape(rest[:1], in_class)
        elif in_class:
            part = _class_member(char, rest)
            in_class = char != "]"
        elif char == "[":
            if rest.startswith(("]", "^]")):
                raise ValueError("an empty class is not supported")
            in_class = True
            if rest.startswith("^"):
                width, part = 2, "[^"
        elif char == ".":
            # Not U+2028 and U+2029, as ECMA-262 has it: leaving them out makes masks a hundred times dearer.
            part = r"[^\n\r]"
        elif char == "(" and rest.startswith("?"):
            named = rest.startswith("?<") and rest[2:3] not in ("=", "!")
            if not (rest.startswith("?:") or named):
                raise ValueError("look-around and flags are not supported")
        yield part
        at += width


def _escape(char: str, in_class: bool) -> str:
    if char == "s":
        return _SPACE if in_class else f"[{_SPACE}]"
    if char == "S":
        if in_class:
            raise ValueError(r"\S inside of a class is not supported")
        return f"[^{_SPACE}]"
    if char in ("<", ">"):
        return char
    if char == "" or (char.isalnum() and char not in _LETTERS):
        raise ValueError(f"the escape \\{char} is not supported")
    return f"\\{char}"


def _class_member(char: str, rest: str) -> str:
    if char == "-" and rest.startswith("-"):
        raise ValueError("-- inside of a class is not supported: write \\-")
    return f"\\{char}" if char in _SET_OPERATORS else char
