"""Regular expressions reduced to literals, classes of characters, groups, alternatives, `*` and `+`.

A library that silently misreads some constructs gets an expression without them: every class is written as ranges of
code points, counts as copies, `?` as an empty alternative, and what has no such form is refused. Characters that JSON
writes by an escape (a quotation mark, a line's end) are taken out of classes, and an alternative that needs one is
dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["plain"]

Ranges = list[tuple[int, int]]
"""Code points, first and last, in order and apart."""

_TEXT: Ranges = [(0, 0xD7FF), (0xE000, 0x10FFFF)]
_BARE: Ranges = [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF)]
"""What a string of JSON holds without escapes."""

_DIGITS: Ranges = [(0x30, 0x39)]
_WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE: Ranges = [
    (9, 13), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
]  # fmt: skip
_NAMED = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CHARACTERS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[ux]\{([0-9a-fA-F]{1,6})\}")
_COUNT = re.compile(r"\{(\d{1,5})(,(\d{0,5}))?\}")
_MOST_COPIES = 100
"""For `{n,m}`."""
_LONGEST = 50_000
"""Characters of the reduced expression."""


def plain(pattern: str, in_json: bool) -> str:
    """The expression in a form that the whole text must match.

    `in_json`: an expression of ECMA-262 that matches any part of a string, unless it is anchored; the result is for the
    string as it is written in JSON. Else one of Rust that matches the whole text: its `\\d`, `\\w` and `\\s` hold more
    characters than those of the result, so that their complements are refused. Raises ValueError for what cannot be
    reduced."""
    parser = _Parser(pattern, in_json)
    opened, closed = pattern.startswith("^"), parser.ends_with_anchor()
    parser.at, parser.end = int(opened), len(pattern) - int(closed)
    found = parser.alternatives(top=opened or closed)
    if parser.at < parser.end:
        raise ValueError("has a ) without its (")
    if found is None:
        raise ValueError("matches no text that can be written")
    if not in_json or (opened and closed):
        return found
    rest = f"{parser.written(_BARE)}*"
    return f"{'' if opened else rest}({found}){'' if closed else rest}"


@dataclass
class _Parser:
    text: str
    in_json: bool
    at: int = 0
    end: int = 0
    depth: int = 0

    def ends_with_anchor(self) -> bool:
        before = self.text[:-1]
        return self.text.endswith("$") and (len(before) - len(before.rstrip("\\"))) % 2 == 0

    def alternatives(self, top: bool) -> str | None:
        """None: nothing can be written. `top`: an anchor would bind to the first or last alternative alone."""
        if self.depth > 100:
            raise ValueError("is nested deeper than 100 levels")
        found = [self.sequence()]
        while self._peek() == "|":
            if top:
                raise ValueError("has alternatives between its anchors: put them into (?:…)")
            self.at += 1
            found.append(self.sequence())
        possible = [one for one in found if one is not None]
        return "|".join(possible) if possible else None

    def sequence(self) -> str | None:
        found: list[str] | None = []
        while self._peek() not in ("", "|", ")"):
            part = self.repeated()
            found = None if part is None or found is None else [*found, part]
        return None if found is None else "".join(found)

    def repeated(self) -> str | None:
        part = self.atom()
        least, most = self._count()
        if self._peek() == "?" and (least, most) != (1, 1):
            # Lazy: the same texts match.
            self.at += 1
        if self._peek() in ("*", "+", "?", "{") and (least, most) != (1, 1):
            raise ValueError("repeats a repetition: put it into (?:…)")
        if part is None:
            return "" if least == 0 else None
        return part if (least, most) == (1, 1) or not part else _copies(part, least, most)

    def atom(self) -> str | None:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return self.written(self._class())
        if char == ".":
            lines: Ranges = [(10, 10), (13, 13), (0x2028, 0x2029)] if self.in_json else [(10, 10)]
            return self.written(_without(_TEXT, lines))
        if char == "\\":
            return self.written(self._escaped(in_class=False))
        if char in "^$*+?{":
            raise ValueError(f"has {char!r} where it cannot be enforced")
        return self.written([(ord(char), ord(char))])

    def _group(self) -> str | None:
        if self._peek() == "?":
            named = re.compile(r"\?(:|P?<[A-Za-z_]\w*>)").match(self.text, self.at)
            if named is None:
                raise ValueError("has look-around or flags, which are not supported")
            self.at = named.end()
        self.depth += 1
        found = self.alternatives(top=False)
        self.depth -= 1
        if self._next() != ")":
            raise ValueError("has a ( without its )")
        return None if found is None else f"({found})" if found else ""

    def _class(self) -> Ranges:
        negated = self._peek() == "^"
        self.at += negated
        found: Ranges = []
        first = True
        while first or self._peek() != "]":
            if first and self._peek() == "]":
                raise ValueError("has an empty class")
            first = False
            low = self._member()
            if self._peek() == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                high = self._member()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] < low[0][0]:
                    raise ValueError("has a class with a range that is none")
                low = [(low[0][0], high[0][1])]
            found += low
        self.at += 1
        return _without(_TEXT, found) if negated else found

    def _member(self) -> Ranges:
        char = self._next()
        if char == "\\":
            return self._escaped(in_class=True)
        if char == "[" or self.text.startswith(("&&", "--", "~~"), self.at - 1):
            raise ValueError("has a class within a class")
        return [(ord(char), ord(char))]

    def _escaped(self, in_class: bool) -> Ranges:
        char = self._peek()
        if char in _NAMED:
            self.at += 1
            if not self.in_json and in_class:
                raise ValueError(f"has \\{char} inside of a class, where it cannot be enforced")
            return _NAMED[char]
        if char.lower() in _NAMED:
            if in_class or not self.in_json:
                raise ValueError(f"has \\{char}, which cannot be enforced")
            self.at += 1
            return _without(_TEXT, _NAMED[char.lower()])
        code = _CODE.match(self.text, self.at, self.end)
        if code is not None:
            self.at = code.end()
            value = int(next(filter(None, code.groups())), 16)
            return [(value, value)]
        self._next()
        if char in _CHARACTERS:
            return [(_CHARACTERS[char],) * 2]
        if char.isalnum():
            raise ValueError(f"has \\{char}, which is not supported")
        return [(ord(char), ord(char))]

    def _count(self) -> tuple[int, int | None]:
        char = self._peek()
        if char in ("*", "+", "?") and char:
            self.at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        if char != "{":
            return 1, 1
        found = _COUNT.match(self.text, self.at, self.end)
        if found is None:
            raise ValueError("has a { that begins no count")
        self.at = found.end()
        least = int(found[1])
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if max(least, most or 0) > _MOST_COPIES:
            raise ValueError(f"has a count above {_MOST_COPIES}")
        return least, most

    def written(self, ranges: Ranges) -> str | None:
        kept = _common(ranges, _BARE if self.in_json else _TEXT)
        if not kept:
            return None
        if len(kept) == 1 and kept[0][0] == kept[0][1]:
            return _character(kept[0][0])
        parts = [_character(low) if low == high else f"{_character(low)}-{_character(high)}" for low, high in kept]
        return f"[{''.join(parts)}]"

    def _peek(self) -> str:
        return self.text[self.at] if self.at < self.end else ""

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise ValueError("ends too early")
        self.at += 1
        return char


def _copies(part: str, least: int, most: int | None) -> str:
    if most is None:
        found = part * max(least - 1, 0) + part + ("*" if least == 0 else "+")
    elif most < least:
        raise ValueError(f"has the count {{{least},{most}}}")
    else:
        found = part * least + f"({part}|)" * (most - least)
    if len(found) > _LONGEST:
        raise ValueError("is too long when its counts are written out")
    return found


def _character(code: int) -> str:
    char = chr(code)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\{char}" if code < 0x80 and not char.isalnum() and char not in " \"#%&',:;<=>@_`~!" else char


def _without(ranges: Ranges, removed: Ranges) -> Ranges:
    found = ranges
    for low, high in removed:
        found = [piece for first, last in found for piece in ((first, min(last, low - 1)), (max(first, high + 1), last))
                 if piece[0] <= piece[1]]  # fmt: skip
    return found


def _common(ranges: Ranges, alphabet: Ranges) -> Ranges:
    return _without(alphabet, _without([(0, 0x10FFFF)], ranges))
