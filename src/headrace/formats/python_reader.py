"""Tool calls written as Python calls with keyword arguments: `[f(a=1, b="x"), g()]`."""

from __future__ import annotations

import re
from collections.abc import Callable

from headrace.formats.reader import Reader, skip_blanks
from headrace.formats.values import json_string, literal_json

__all__ = ["PythonCallsReader"]

_MAX_NAME = 256
_NAME_END = re.compile(r"[^\w.\-]")
_OUTSIDE = re.compile(r"[\"'(\[{)\]},]")


class PythonCallsReader(Reader):
    """Calls in a list, or one per line."""

    def __init__(self, listed: bool = True, suffix: str = "") -> None:
        """`suffix`: what the model writes after every function's name."""
        super().__init__()
        self._listed, self._suffix = listed, suffix
        self._step: Callable[[str, int], int] = self._open if listed else self._begin_name
        self._parts: list[str] = []
        self._name = ""
        self._key = ""
        self._count = 0
        self._depth = 0
        self._quote = ""
        self._escaped = False

    @property
    def in_string(self) -> bool:
        return bool(self._quote)

    def read(self, text: str, at: int, final: bool) -> int:
        while at < len(text) and self.status == "more":
            at = self._step(text, at)
        return at

    def finish(self, complete: bool) -> None:
        if complete and self._count and self._step != self._after_call:
            value = self._value() if self._step == self._read_value else ""
            self.arguments(value + "}")

    def _fail(self, at: int) -> int:
        self.status = "failed"
        return at

    def _open(self, text: str, at: int) -> int:
        at = skip_blanks(text, at)
        if at < len(text) and text[at] != "[":
            return self._fail(at)
        self._step = self._begin_name if at < len(text) else self._open
        return at + 1 if at < len(text) else at

    def _begin_name(self, text: str, at: int) -> int:
        at = skip_blanks(text, at)
        if at < len(text):
            self._parts, self._step = [], self._read_name
        return at

    def _word(self, text: str, at: int) -> tuple[int, str | None]:
        """(index after the characters of a name, the name once it is complete)"""
        found = _NAME_END.search(text, at)
        end = len(text) if found is None else found.start()
        self._parts.append(text[at:end])
        word = "".join(self._parts)
        if len(word) > _MAX_NAME:
            self.status = "failed"
        return end, word if found is not None else None

    def _read_name(self, text: str, at: int) -> int:
        end, name = self._word(text, at)
        if name is None:
            return end
        if not name or name[0].isdigit() or text[end] != "(":
            return self._fail(end)
        self._name, self._count, self._step = name.removesuffix(self._suffix), 0, self._first
        return end + 1

    def _first(self, text: str, at: int) -> int:
        at = skip_blanks(text, at)
        if at < len(text):
            if text[at] == ")":
                self.call(self._name)
                return self._end_call(at)
            self._parts, self._step = [], self._read_key
        return at

    def _read_key(self, text: str, at: int) -> int:
        if not any(self._parts):
            at = skip_blanks(text, at)
        end, key = self._word(text, at)
        if key is None:
            return end
        self._key, self._step = key, self._equals
        return self._fail(end) if not key else end

    def _equals(self, text: str, at: int) -> int:
        at = skip_blanks(text, at)
        if at == len(text):
            return at
        if text[at] != "=":
            return self._fail(at)
        if not self._count:
            self.call(self._name)
        self.arguments(("{" if not self._count else ", ") + json_string(self._key) + ": ")
        self._count += 1
        self._parts, self._depth, self._step = [], 0, self._read_value
        return at + 1

    def _read_value(self, text: str, at: int) -> int:
        if self._quote:
            return self._read_string(text, at)
        found = _OUTSIDE.search(text, at)
        end = len(text) if found is None else found.start()
        self._parts.append(text[at:end])
        if found is None:
            return end
        mark = found.group()
        if not self._depth and mark in ",)":
            self.arguments(self._value())
            self._parts, self._step = [], self._read_key
            return self._end_call(end) if mark == ")" else end + 1
        self._parts.append(mark)
        if mark in "\"'":
            self._quote = mark
        elif mark != ",":
            self._depth += 1 if mark in "([{" else -1
        return self._fail(end) if self._depth < 0 else end + 1

    def _value(self) -> str:
        return literal_json(self.stand_ins.shown("".join(self._parts)))

    def _read_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            self._parts.append(text[at])
            return at + 1
        stops = [index for mark in (self._quote, "\\") if (index := text.find(mark, at)) >= 0]
        if not stops:
            self._parts.append(text[at:])
            return len(text)
        end = min(stops)
        self._parts.append(text[at : end + 1])
        self._escaped = text[end] == "\\"
        if not self._escaped:
            self._quote = ""
        return end + 1

    def _end_call(self, at: int) -> int:
        if self._count:
            self.arguments("}")
        self.end()
        self._step = self._after_call
        return at + 1

    def _after_call(self, text: str, at: int) -> int:
        at = skip_blanks(text, at)
        if at == len(text):
            return at
        if self._listed and text[at] in ",]":
            self._step = self._begin_name
            if text[at] == "]":
                self.status = "done"
            return at + 1
        if not self._listed and (text[at].isalpha() or text[at] == "_"):
            self._step = self._begin_name
            return at
        self.status = "done"
        return at
