"""Tool calls of FunctionGemma and Gemma 4: `call:f{k:<escape>v<escape>,n:5}`."""

from __future__ import annotations

import re

from headrace.formats.nested_reader import NestedReader
from headrace.formats.reader import matched_literal, search_end, skip_blanks
from headrace.formats.stand_ins import StandIns
from headrace.formats.values import literal_json

__all__ = ["GemmaCallReader"]

_MAX_NAME = 256
_SCALAR_END = re.compile(r"[,}\]]")


class GemmaCallReader(NestedReader):
    """One call. Keys are bare, strings stand between two quote markers, other values are JSON scalars."""

    def __init__(self, quote: str) -> None:
        super().__init__(self._read_prefix)
        self._token = self._quote = quote
        self._key = ""
        self._in_scalar = False

    def use_stand_ins(self, stand_ins: StandIns) -> None:
        super().use_stand_ins(stand_ins)
        self._quote = stand_ins.of(self._token)

    def finish(self, complete: bool) -> None:
        if complete and self._open:
            if self._in_scalar:
                self.arguments(literal_json(self._kept()))
            self._close_all()

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
        name = self._keep(text[at:end]).strip()
        if len(name) > _MAX_NAME or (found and not name):
            self.status = "failed"
        elif found:
            self.call(name)
            self._enter("{")
            self._step = self._read_item
            return end + 1
        return end

    def _read_item(self, text: str, at: int, final: bool) -> int:
        """Before an item of an object or a list, or its end."""
        at = skip_blanks(text, at)
        first = text[at : at + 1]
        if first in ("}", "]"):
            self._leave()
            if not self._open:
                self.end()
                self.status = "done"
            return at + 1
        if first == ",":
            return at + 1
        if first:
            self._parts, self._key = [], ""
            self._step = self._read_key if self._open[-1] == "{" else self._read_value
        return at

    def _read_key(self, text: str, at: int, final: bool) -> int:
        end, found = search_end(text, at, ":", final)
        key = self._keep(text[at:end]).strip()
        if not found:
            return end
        if len(key) > 2 * len(self._token) and key.startswith(self._token) and key.endswith(self._token):
            key = key[len(self._token) : -len(self._token)]
        self._parts, self._key, self._step = [], key, self._read_value
        return end + 1

    def _read_value(self, text: str, at: int, final: bool) -> int | None:
        start, at = at, skip_blanks(text, at)
        if at == len(text):
            return at
        found = matched_literal(text, at, (self._quote,), final)
        if found is None:
            return at if at > start else None
        self._item(self._key)
        if found:
            self._begin_text()
            self._step = self._read_text
        elif text[at] in "{[":
            self._enter("{" if text[at] == "{" else "[")
            self._step = self._read_item
            return at + 1
        else:
            self._in_scalar, self._step = True, self._read_scalar
        return at + len(found)

    def _read_text(self, text: str, at: int, final: bool) -> int | None:
        end, found = search_end(text, at, self._quote, final)
        self._add_text(text[at:end])
        if found:
            self._end_text()
            self._step = self._read_item
            return end + len(self._quote)
        return end if end > at else None

    def _read_scalar(self, text: str, at: int, final: bool) -> int:
        found = _SCALAR_END.search(text, at)
        end = len(text) if found is None else found.start()
        self._parts.append(text[at:end])
        if found is not None:
            self.arguments(literal_json(self._kept()))
            self._in_scalar, self._step = False, self._read_item
        return end
