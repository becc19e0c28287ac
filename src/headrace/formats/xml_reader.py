"""Tool calls whose parameters are elements: Qwen3-Coder, GLM, MiniMax M2 and DeepSeek V3.2."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from headrace.formats.reader import Reader, matched_literal, search_end, skip_blanks
from headrace.formats.values import Schemas, json_string, parameter_types, typed_json

__all__ = ["XmlCallReader", "XmlSyntax"]

_MAX_NAME = 1000
_LOOKAHEAD = 80
"""Characters after the end of a value that may decide whether it was the end."""
_ATTRIBUTE = re.compile(r"""(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
_NAME_END = re.compile(r"[\n<]")


@dataclass(frozen=True, slots=True)
class XmlSyntax:
    """The markers of one call, which begins at its name."""

    param_open: str
    param_end: str
    """Ends a parameter's name."""
    value_end: str
    call_end: str
    value_open: str = ""
    attributes: bool = False
    """Names stand in an attribute `name`; a parameter with `string="false"` is JSON."""
    plain_name: bool = False
    """The function's name ends with the line or at the next marker, not with `>`."""
    trim: bool = False
    """One newline at each end of a value is not part of it."""
    outer_end: str = ""
    """Ends the call too, if `call_end` is missing."""

    @property
    def followers(self) -> tuple[str, ...]:
        """The markers of which one follows a value."""
        return tuple(filter(None, (self.param_open, self.call_end, self.outer_end)))


class XmlCallReader(Reader):
    """One call."""

    def __init__(self, syntax: XmlSyntax, schemas: Schemas) -> None:
        super().__init__()
        self._syntax, self._schemas = syntax, schemas
        self._step: Callable[[str, int, bool], int | None] = self._read_name
        self._function = ""
        self._parameter = ""
        self._raw_string = False
        self._types: frozenset[str] = frozenset()
        self._parts: list[str] = []
        self._count = 0
        self._in_value = False

    @property
    def in_string(self) -> bool:
        return self._in_value

    def read(self, text: str, at: int, final: bool) -> int:
        while at < len(text) and self.status == "more":
            moved = self._step(text, at, final)
            if moved is None:
                break
            at = moved
        return at

    def finish(self, complete: bool) -> None:
        if self._function and complete:
            if self._in_value:
                self._end_value()
            self._end_call(at=0)

    def _read_name(self, text: str, at: int, final: bool) -> int:
        if self._syntax.plain_name:
            match = _NAME_END.search(text, at)
            end, found = (len(text), False) if match is None else (match.start(), True)
        else:
            end, found = search_end(text, at, ">", final)
        self._parts.append(text[at:end])
        name = "".join(self._parts)
        if len(name) > _MAX_NAME:
            self.status = "failed"
            return end
        if found:
            self._function = (_attributes(name).get("name", "") if self._syntax.attributes else name).strip()
            self._parts, self._step = [], self._read_between
            if not self._function:
                self.status = "failed"
            else:
                self.call(self._function)
            end += not self._syntax.plain_name
        return end

    def _read_between(self, text: str, at: int, final: bool) -> int | None:
        """Between two parameters."""
        start, at = at, skip_blanks(text, at)
        if at == len(text):
            return at
        syntax = self._syntax
        found = matched_literal(text, at, (syntax.param_open, syntax.call_end), final)
        if found is None:
            return at if at > start else None
        if found == syntax.call_end:
            self._end_call(at)
            return at + len(found)
        if not found:
            self._end_call(at)
            return at
        self._step = self._read_parameter
        return at + len(found)

    def _end_call(self, at: int) -> None:
        if self._count:
            self.arguments("}")
        self.end()
        self._function, self.status = "", "done"

    def _read_parameter(self, text: str, at: int, final: bool) -> int | None:
        syntax = self._syntax
        end, found = search_end(text, at, syntax.param_end, final)
        self._parts.append(text[at:end])
        if not found:
            return end if end > at else None
        written, self._parts = "".join(self._parts), []
        attributes = _attributes(written) if syntax.attributes else {}
        self._parameter = attributes.get("name", written).strip()
        self._types = parameter_types(self._schemas, self._function, self._parameter)
        if "string" in attributes:
            self._types = frozenset({"string"}) if attributes["string"] == "true" else frozenset({"json"})
        self._step = self._read_open if syntax.value_open else self._read_first
        return end + len(syntax.param_end)

    def _read_open(self, text: str, at: int, final: bool) -> int | None:
        start, at = at, skip_blanks(text, at)
        if at == len(text):
            return at
        found = matched_literal(text, at, (self._syntax.value_open,), final)
        if found is None:
            return at if at > start else None
        self._step = self._read_first
        return at + len(found)

    def _read_first(self, text: str, at: int, final: bool) -> int:
        self._in_value, self._step = True, self._read_value
        self.arguments(("{" if not self._count else ", ") + json_string(self._parameter) + ": ")
        self._count += 1
        self._raw_string = self._types == {"string"}
        if self._raw_string:
            self.arguments('"')
        return at + (self._syntax.trim and text[at] == "\n")

    def _read_value(self, text: str, at: int, final: bool) -> int | None:
        end, found = search_end(text, at, self._syntax.value_end, final)
        before = end - 1 if self._syntax.trim and end > at and text[end - 1] == "\n" else end
        if not found:
            self._add(text[at:end] if final else text[at:before])
            end = end if final else before
            return end if end > at else None
        after = end + len(self._syntax.value_end)
        ends = self._ends(text, after, final)
        if ends is None:
            self._add(text[at:before])
            return before if before > at else None
        if not ends:
            self._add(text[at : end + 1])
            return end + 1
        self._add(text[at:before])
        self._end_value()
        return after

    def _ends(self, text: str, after: int, final: bool) -> bool | None:
        """Whether what follows an end marker confirms it; None if more text must decide."""
        rest = text[after : after + _LOOKAHEAD]
        bare = rest.lstrip()
        followers = self._syntax.followers
        if any(bare.startswith(follower) for follower in followers):
            return True
        if final or len(rest) == _LOOKAHEAD:
            return not bare
        return None if not bare or any(follower.startswith(bare) for follower in followers) else False

    def _add(self, text: str) -> None:
        if self._raw_string:
            self.arguments(json_string(text)[1:-1])
        else:
            self._parts.append(text)

    def _end_value(self) -> None:
        self.arguments('"' if self._raw_string else typed_json("".join(self._parts), self._types))
        self._parts, self._in_value, self._step = [], False, self._read_between


def _attributes(text: str) -> dict[str, str]:
    return {found[1]: found[2] or found[3] or found[4] or "" for found in _ATTRIBUTE.finditer(text)}
