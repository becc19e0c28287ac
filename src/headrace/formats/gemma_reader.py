"""Tool calls of FunctionGemma and Gemma 4: `call:f{k:<escape>v<escape>,n:5}`."""

from __future__ import annotations

import re
from collections.abc import Callable

from headrace.formats.reader import Reader, matched_literal, search_end, skip_blanks
from headrace.formats.values import json_string, literal_json

__all__ = ["GemmaCallReader"]

_MAX_NAME = 256
_SCALAR_END = re.compile(r"[,}\]]")


class GemmaCallReader(Reader):
    """One call. Keys are bare, strings stand between two quote markers, other values are JSON scalars."""

    def __init__(self, quote: str) -> None:
        super().__init__()
        self._quote = quote
        self._step: Callable[[str, int, bool], int | None] = self._read_prefix
        self._parts: list[str] = []
        self._open: list[str] = []
        self._empty = True
        self._in_text = False

    @property
    def in_string(self) -> bool:
        return self._in_text

    def read(self, text: str, at: int, final: bool) -> int:
        while at < len(text) and self.status == "more":
            moved = self._step(text, at, final)
            if moved is None:
                break
            at = moved
        return at

    def finish(self, complete: bool) -> None:
        if complete and self._open:
            self.arguments('"' * self._in_text + "".join("}" if mark == "{" else "]" for mark in reversed(self._open)))

    def _read_prefix(self, text: str, at: int, final: bool) -> int | None:
        found = matched_literal(text, at, ("call:",), final)
        if found is None:
            return None
        if not found:
            self.status = "failed"
        self._step = self._read_name
        return at + len(found)

    def _read_name(self, text: str, at: int, final: bool) -> int:
        end, found = search_end(text, at, "{", final)
        self._parts.append(text[at:end])
        name = "".join(self._parts).strip()
        if len(name) > _MAX_NAME or (found and not name):
            self.status = "failed"
        elif found:
            self.call(name)
            self._enter("{")
            return end + 1
        return end

    def _enter(self, bracket: str) -> None:
        self.arguments(bracket)
        self._open.append(bracket)
        self._empty = True
        self._step = self._read_item

    def _read_item(self, text: str, at: int, final: bool) -> int:
        """Before an item of an object or a list, or its end."""
        at = skip_blanks(text, at)
        first = text[at : at + 1]
        if first in ("}", "]"):
            self._leave()
            return at + 1
        if first == ",":
            return at + 1
        if first:
            if not self._empty:
                self.arguments(", ")
            self._empty, self._parts = False, []
            self._step = self._read_key if self._open[-1] == "{" else self._read_value
        return at

    def _leave(self) -> None:
        self.arguments("}" if self._open.pop() == "{" else "]")
        self._empty, self._step = False, self._read_item
        if not self._open:
            self.end()
            self.status = "done"

    def _read_key(self, text: str, at: int, final: bool) -> int:
        end, found = search_end(text, at, ":", final)
        self._parts.append(text[at:end])
        if not found:
            return end
        key = "".join(self._parts).strip()
        if len(key) > 2 * len(self._quote) and key.startswith(self._quote) and key.endswith(self._quote):
            key = key[len(self._quote) : -len(self._quote)]
        self.arguments(json_string(key) + ": ")
        self._parts, self._step = [], self._read_value
        return end + 1

    def _read_value(self, text: str, at: int, final: bool) -> int | None:
        start, at = at, skip_blanks(text, at)
        if at == len(text):
            return at
        if text[at] in "{[":
            self._enter(text[at])
            return at + 1
        found = matched_literal(text, at, (self._quote,), final)
        if found is None:
            return at if at > start else None
        if found:
            self.arguments('"')
            self._in_text, self._step = True, self._read_text
            return at + len(found)
        self._parts, self._step = [], self._read_scalar
        return at

    def _read_text(self, text: str, at: int, final: bool) -> int | None:
        end, found = search_end(text, at, self._quote, final)
        self.arguments(json_string(text[at:end])[1:-1])
        if found:
            self.arguments('"')
            self._in_text, self._step = False, self._read_item
            return end + len(self._quote)
        return end if end > at else None

    def _read_scalar(self, text: str, at: int, final: bool) -> int:
        found = _SCALAR_END.search(text, at)
        end = len(text) if found is None else found.start()
        self._parts.append(text[at:end])
        if found is not None:
            self.arguments(literal_json("".join(self._parts)))
            self._parts, self._step = [], self._read_item
        return end
