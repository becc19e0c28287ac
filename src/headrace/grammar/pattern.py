"""Patterns of JSON schemas, which are ECMA-262's expressions, as the library's: Rust's, which differ in small
things."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

__all__ = ["translated"]

_Class = Literal["", "positive", "negated"]
"""Where in a pattern: outside of a class, or in one."""

_SPACE = r"\t\n\x0b\x0c\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
"""ECMA-262's white space and line terminators: with U+FEFF, without U+0085."""
_CONTROL = r"\x00-\x1f"
_WRITABLE = frozenset("\t\n\v\f\r")
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")
_LETTERS = frozenset("dDwWtnrvfp")
"""Letters that may stand behind a backslash and mean the same in both languages. `\\P{…}` may let escapes through."""
_SET_OPERATORS = frozenset("[&~")
"""Characters of a class that may mean a nested class or an operation on sets in Rust, and themselves in ECMA-262."""


def translated(pattern: str, in_json: bool = True) -> str:
    """The same expression for the library. Raises ValueError for what has another meaning there or none. `in_json`:
    for a string in JSON; else for text as it is.

    In JSON two things stay narrower than in ECMA-262, so that nothing invalid is allowed: a negated class matches no
    control character, since the library lets escapes of quotation marks and backslashes through beside them; and
    control characters other than white space cannot be named outside of such a class.
    """
    return "".join(_parts(pattern, in_json))


def _parts(pattern: str, in_json: bool) -> Iterator[str]:
    at = 0
    in_class: _Class = ""
    while at < len(pattern):
        char, rest = pattern[at], pattern[at + 1 :]
        width, part = 1, char
        if char == "\\":
            width, part = _escape(rest, in_class, in_json)
        elif in_json and char < " " and in_class != "negated" and char not in _WRITABLE:
            raise ValueError("a control character is not supported")
        elif in_class:
            part = _class_member(char, rest)
            if char == "]":
                part = rf"{_CONTROL}]" if in_json and in_class == "negated" else "]"
                in_class = ""
        elif char == "[":
            if rest.startswith(("]", "^]")):
                raise ValueError("an empty class is not supported")
            in_class = "positive"
            if rest.startswith("^"):
                in_class, width, part = "negated", 2, "[^"
        elif char == ".":
            # Not U+2028 and U+2029, as ECMA-262 has it: leaving them out makes masks a hundred times dearer.
            part = r"[^\n\r]"
        elif char == "(" and rest.startswith("?"):
            named = rest.startswith("?<") and rest[2:3] not in ("=", "!")
            if not (rest.startswith("?:") or named):
                raise ValueError("look-around and flags are not supported")
        yield part
        at += width


def _escape(rest: str, in_class: _Class, in_json: bool) -> tuple[int, str]:
    """What a backslash and the characters behind it become, and how many characters they are."""
    char = rest[:1]
    if char == "s":
        return 2, _SPACE if in_class else f"[{_SPACE}]"
    if char == "S":
        if in_class:
            raise ValueError(r"\S inside of a class is not supported")
        return 2, f"[^{_SPACE}]"
    code = _CODE.match(rest)
    if code is not None:
        value = int(next(filter(None, code.groups())), 16)
        if in_json and value < 0x20 and in_class != "negated" and chr(value) not in _WRITABLE:
            raise ValueError("a control character is not supported")
        return 1 + code.end(), f"\\{code[0]}"
    if char in ("<", ">"):
        return 2, char
    if char == "" or (char.isalnum() and char not in _LETTERS):
        raise ValueError(f"the escape \\{char} is not supported")
    return 2, f"\\{char}"


def _class_member(char: str, rest: str) -> str:
    if char == "-" and rest.startswith("-"):
        raise ValueError("-- inside of a class is not supported: write \\-")
    return f"\\{char}" if char in _SET_OPERATORS else char
