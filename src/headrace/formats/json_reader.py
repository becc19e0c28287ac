"""Tool calls written as JSON: objects with a name and arguments, and arguments alone. The JSON text is passed on as it
was written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from headrace.formats.reader import Reader, skip_blanks

__all__ = ["COHERE_NAMES", "JsonArgumentsReader", "JsonCallsReader", "JsonScanner"]

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[,}\]\s]")
_ARGUMENTS = ("arguments", "parameters")
_KNOWN = ("name", "id", "type", *_ARGUMENTS)
COHERE_NAMES = {"tool_name": "name", "tool_call_id": "id"}


class JsonScanner:
    """Finds the end of one JSON value. Brackets and strings are tracked; nothing else is checked."""

    def __init__(self) -> None:
        self.in_string = False
        self._kind = ""
        self._depth = 0
        self._escaped = False

    def scan(self, text: str, at: int) -> tuple[int, bool]:
        """(index after the part of the value that stands at `at`, whether the value is complete)"""
        while at < len(text):
            if self._escaped:
                self._escaped, at = False, at + 1
            elif self.in_string:
                at = self._scan_string(text, at)
                if not self.in_string and not self._depth:
                    return at, True
            elif not self._kind:
                at = self._begin(text[at], at)
            elif self._kind == "scalar":
                found = _SCALAR_END.search(text, at)
                return (len(text), False) if found is None else (found.start(), True)
            else:
                at = self._scan_brackets(text, at)
                if not self.in_string and not self._depth:
                    return at, True
        return at, False

    def _begin(self, first: str, at: int) -> int:
        self._kind = "string" if first == '"' else "brackets" if first in "{[" else "scalar"
        self.in_string = first == '"'
        self._depth = int(first in "{[")
        return at if self._kind == "scalar" else at + 1

    def _scan_string(self, text: str, at: int) -> int:
        found = _INSIDE.search(text, at)
        if found is None:
            return len(text)
        self._escaped = found.group() == "\\"
        self.in_string = self._escaped
        return found.end()

    def _scan_brackets(self, text: str, at: int) -> int:
        found = _OUTSIDE.search(text, at)
        if found is None:
            return len(text)
        if found.group() == '"':
            self.in_string = True
        else:
            self._depth += 1 if found.group() in "{[" else -1
        return found.end()


class JsonArgumentsReader(Reader):
    """The arguments alone: one JSON object. Other text is left to what follows."""

    def __init__(self) -> None:
        super().__init__()
        self._scanner: JsonScanner | None = None

    @property
    def in_string(self) -> bool:
        return self._scanner is not None and self._scanner.in_string

    def read(self, text: str, at: int, final: bool) -> int:
        if self._scanner is None:
            at = skip_blanks(text, at)
            if at == len(text):
                return at
            if text[at] != "{":
                self.status = "done"
                return at
            self._scanner = JsonScanner()
        end, done = self._scanner.scan(text, at)
        self.arguments(text[at:end])
        if done:
            self.status = "done"
        return end


class JsonCallsReader(Reader):
    """One object with a name and arguments, or a list of such objects."""

    def __init__(self, bare: bool = False, id_last: bool = False, names: Mapping[str, str] = COHERE_NAMES) -> None:
        """`bare`: no marker stands before the object, so that one with other keys, or without arguments, is no call.
        `id_last`: the id may follow the arguments, which then wait for it. `names`: other names of the keys `name`,
        `id` and `arguments`, with these."""
        super().__init__()
        self._names = {} if bare else names
        self._bare, self._id_last = bare, id_last
        self._listed = False
        self._step: Callable[[str, int], int] = self._open
        self._scanner = JsonScanner()
        self._key = ""
        self._parts: list[str] = []
        self._reset()

    def _reset(self) -> None:
        self._name: str | None = None
        self._id: str | None = None
        self._started = False
        self._streams = False
        self._has_arguments = False
        self._waiting: list[str] = []

    @property
    def in_string(self) -> bool:
        return self._scanner.in_string

    def read(self, text: str, at: int, final: bool) -> int:
        while at < len(text) and self.status == "more":
            at = self._step(text, at)
        return at

    def finish(self, complete: bool) -> None:
        if self._name is not None and not self._started and not self._bare:
            self._start()

    def _fail(self, at: int) -> int:
        self.status = "failed"
        return at

    def _open(self, text: str, at: int) -> int:
        at = skip_blanks(text, at)
        if text.startswith("[", at) and not self._bare:
            self._listed, self._step = True, self._item
            return at + 1
        if text.startswith("{", at):
            self._step = self._next_key
            return at + 1
        return at if at == len(text) else self._fail(at)

    def _item(self, text: str, at: int) -> int:
        at = skip_blanks(text, at)
        first = text[at : at + 1]
        if first == "{":
            self._reset()
            self._step = self._next_key
        elif first == "]":
            self.status = "done"
        elif first and first != ",":
            return self._fail(at)
        return at + len(first)

    def _next_key(self, text: str, at: int) -> int:
        at = skip_blanks(text, at)
        first = text[at : at + 1]
        if first == '"':
            self._begin_value(self._got_key)
            return at
        if first == "}":
            return self._end_object(at)
        return at + len(first) if first in ("", ",") else self._fail(at)

    def _end_object(self, at: int) -> int:
        if self._name is None or (self._bare and not self._has_arguments):
            return self._fail(at)
        if not self._started:
            self._start()
        self.end()
        self._step = self._item
        if not self._listed:
            self.status = "done"
        self._reset()
        return at + 1

    def _got_key(self, value: str) -> None:
        key = str(_decoded(value))
        self._key = self._names.get(key, key)
        self._step = self._colon

    def _colon(self, text: str, at: int) -> int:
        at = skip_blanks(text, at)
        first = text[at : at + 1]
        if first and (first != ":" or (self._bare and self._key not in _KNOWN)):
            return self._fail(at)
        if first:
            self._step = self._value
        return at + len(first)

    def _value(self, text: str, at: int) -> int:
        at = skip_blanks(text, at)
        if at == len(text):
            return at
        if text[at] in ",}]":
            return self._fail(at)
        if self._key in _ARGUMENTS and (self._started or any(self._waiting)):
            # Repeated: a stream has had the first, so they count.
            self._key = ""
        self._begin_value(self._got_value)
        self._streams = self._key in _ARGUMENTS and text[at] != '"'
        if self._streams and text[at] == "{":
            self._has_arguments = True
            if self._name is not None and not self._id_last and not self._started:
                self._start()
        return at

    def _begin_value(self, got: Callable[[str], None]) -> None:
        self._scanner, self._parts, self._got = JsonScanner(), [], got
        self._streams = False
        self._step = self._scan

    def _scan(self, text: str, at: int) -> int:
        end, done = self._scanner.scan(text, at)
        self._parts.append(text[at:end])
        if self._streams and self._started:
            self.arguments("".join(self._parts))
            self._parts = []
        if done:
            # Sets the next step.
            self._got("".join(self._parts))
        return end

    def _got_value(self, value: str) -> None:
        self._step = self._next_key
        if self._key == "name":
            self._name = _text_of(value) or self._name
            if self._name is not None and self._has_arguments and not self._id_last and not self._started:
                self._start()
        elif self._key == "id":
            self._id = _text_of(value) or self._id
        elif self._key in _ARGUMENTS:
            self._take_arguments(value)

    def _take_arguments(self, value: str) -> None:
        self._has_arguments = True
        # Some models write the object as a string that holds JSON.
        given = value if self._streams else _text_of(value)
        given = "" if given is None or given.strip() == "null" else given
        if self._started:
            self.arguments(given)
        else:
            self._waiting.append(given)

    def _start(self) -> None:
        assert self._name is not None
        self._started = True
        self.call(self._name, self._id)
        self.arguments("".join(self._waiting))
        self._waiting = []


def _decoded(value: str) -> object:
    """The value of a JSON string; the text itself if it is damaged."""
    try:
        return json.loads(value, strict=False)
    except ValueError:
        return value.strip('"')


def _text_of(value: str) -> str | None:
    """The text of a JSON string that is not empty."""
    found = _decoded(value) if value.startswith('"') else None
    return found if isinstance(found, str) and found else None
