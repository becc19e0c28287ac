"""Tool calls whose parameters are elements: Qwen3-Coder, GLM, MiniMax M2, DeepSeek V3.2, Kimi K3 and Cohere's XML."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace

from headrace.formats.nested_reader import NestedReader
from headrace.formats.reader import matched_literal, search_end, skip_blanks
from headrace.formats.stand_ins import StandIns
from headrace.formats.values import Schemas, parameter_types, typed_json, without_entities

__all__ = ["XmlCallReader", "XmlSyntax"]

_MAX_NAME = 1000
_LOOKAHEAD = 80
"""Characters after the end of a value that may decide whether it was the end."""
_ATTRIBUTE = re.compile(r"""(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
_NAME_END = re.compile("[\n<\ud800-\udfff]")
"""A stand-in of a special token ends a name, too."""
_TEXTS = {("string", "true"), ("type", "string"), ("type", "raw")}
"""Attributes of a parameter that is a string as it is; with other values of these attributes it is JSON."""


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
    """Names stand in an attribute; so may the type of a value: `string="false"`, `type="number"`."""
    function_key: str = "name"
    parameter_key: str = "name"
    id_key: str = ""
    """The attribute that has the call's id."""
    plain_name: bool = False
    """The function's name ends with the line or at the next marker, not at `name_end`."""
    name_end: str = ">"
    trim: bool = False
    """One newline at each end of a value is not part of it."""
    outer_end: str = ""
    """Ends the call too, if `call_end` is missing."""
    nested: bool = False
    """With `type="dict"` or `type="list"`, parameters stand within a parameter."""
    whole_open: str = ""
    whole_end: str = ""
    """Around all arguments as JSON, which may stand in place of parameters. The opening ends with `param_end`."""
    other: XmlSyntax | None = None
    """Another syntax of the parameters, if the first one begins as there."""

    def with_stand_ins(self, stand_ins: StandIns) -> XmlSyntax:
        names = [one.name for one in fields(self) if one.type == "str" and not one.name.endswith("_key")]
        put = {name: stand_ins.put(getattr(self, name)) for name in names}
        other = None if self.other is None else self.other.with_stand_ins(stand_ins)
        return replace(self, **put, other=other)  # type: ignore[arg-type]


class XmlCallReader(NestedReader):
    """One call."""

    def __init__(self, syntax: XmlSyntax, schemas: Schemas) -> None:
        super().__init__(self._read_name)
        self._syntax, self._schemas = syntax, schemas
        self._function = ""
        self._parameter = ""
        self._types: frozenset[str] = frozenset()
        self._in_value = False

    @property
    def in_string(self) -> bool:
        return self._in_value

    def use_stand_ins(self, stand_ins: StandIns) -> None:
        super().use_stand_ins(stand_ins)
        self._syntax = self._syntax.with_stand_ins(stand_ins)

    def finish(self, complete: bool) -> None:
        if self._function and complete:
            if self._step == self._read_whole:
                self.arguments(self._kept().strip())
            elif self._in_value:
                self._end_value()
            self._end_call()

    def _read_name(self, text: str, at: int, final: bool) -> int | None:
        syntax = self._syntax
        if syntax.plain_name:
            match = _NAME_END.search(text, at)
            end, found = (len(text), False) if match is None else (match.start(), True)
        else:
            end, found = search_end(text, at, syntax.name_end, final)
        name = self._keep(text[at:end])
        if len(name) > _MAX_NAME:
            self.status = "failed"
            return end
        if not found:
            return end if end > at else None
        attributes = _attributes(name) if syntax.attributes else {}
        self._function = (attributes.get(syntax.function_key, "") if syntax.attributes else name).strip()
        self._parts, self._step = [], self._read_between
        if not self._function:
            self.status = "failed"
        else:
            self.call(self._function, attributes.get(syntax.id_key) or None)
        return end if syntax.plain_name else end + len(syntax.name_end)

    def _read_between(self, text: str, at: int, final: bool) -> int | None:
        """Between two parameters."""
        start, at = at, skip_blanks(text, at)
        if at == len(text):
            return at
        syntax = self._syntax
        inner = (syntax.value_end,) if len(self._open) > 1 else ()
        other = (syntax.other.param_open,) if syntax.other is not None else ()
        whole = (syntax.whole_open,) if syntax.whole_open and not self._open else ()
        found = matched_literal(text, at, (syntax.param_open, syntax.call_end, *inner, *other, *whole), final)
        if found is None:
            return at if at > start else None
        if found and found in other and syntax.other is not None:
            self._syntax = syntax.other
        if found == self._syntax.param_open:
            self._step = self._read_parameter
        elif found and found in whole:
            self._step = self._read_whole_name
        elif found and found in inner:
            self._leave()
        else:
            self._end_call()
        return at + len(found)

    def _read_whole_name(self, text: str, at: int, final: bool) -> int | None:
        end, found = search_end(text, at, self._syntax.param_end, final)
        if not found:
            return end if end > at else None
        self._step, self._in_value = self._read_whole, True
        return end + len(self._syntax.param_end)

    def _read_whole(self, text: str, at: int, final: bool) -> int | None:
        end, found = search_end(text, at, self._syntax.whole_end, final)
        self._parts.append(text[at:end])
        if not found:
            return end if end > at else None
        self.arguments(self._kept().strip())
        self._step, self._in_value = self._read_between, False
        return end + len(self._syntax.whole_end)

    def _end_call(self) -> None:
        self._close_all()
        self.end()
        self._function, self.status = "", "done"

    def _read_parameter(self, text: str, at: int, final: bool) -> int | None:
        syntax = self._syntax
        end, found = search_end(text, at, syntax.param_end, final)
        self._parts.append(text[at:end])
        if not found:
            return end if end > at else None
        written = self._kept()
        attributes = _attributes(written) if syntax.attributes else {}
        self._parameter = attributes.get(syntax.parameter_key, "" if attributes else written).strip()
        at = end + len(syntax.param_end)
        if syntax.nested and attributes.get("type") in ("dict", "list"):
            self._begin_item()
            self._enter("{" if attributes["type"] == "dict" else "[")
            self._step = self._read_between
            return at
        self._types = self._stated_types(attributes)
        self._step = self._read_open if syntax.value_open else self._read_first
        return at

    def _stated_types(self, attributes: dict[str, str]) -> frozenset[str]:
        """By the attributes, or by the schema."""
        stated = [(key, attributes[key]) for key in ("string", "type") if key in attributes]
        if stated:
            return frozenset({"string" if stated[0] in _TEXTS else "json"})
        if len(self._open) > 1:
            return frozenset()
        return parameter_types(self._schemas, self._function, self._parameter)

    def _begin_item(self) -> None:
        if not self._open:
            self._enter("{")
        self._item(self._parameter)

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
        self._begin_item()
        if self._types == {"string"}:
            self._begin_text()
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
        followers = self._followers()
        if any(bare.startswith(follower) for follower in followers):
            return True
        if final or len(rest) == _LOOKAHEAD:
            return not bare
        return None if not bare or any(follower.startswith(bare) for follower in followers) else False

    def _followers(self) -> tuple[str, ...]:
        """The markers of which one follows a value."""
        syntax = self._syntax
        inner = syntax.value_end if len(self._open) > 1 else ""
        return tuple(filter(None, (syntax.param_open, syntax.call_end, syntax.outer_end, inner)))

    def _add(self, text: str) -> None:
        if self._in_text:
            self._add_text(text)
        else:
            self._parts.append(text)

    def _end_value(self) -> None:
        if self._in_text:
            self._end_text()
        else:
            self.arguments(typed_json(self._kept(), self._types))
        self._in_value, self._step = False, self._read_between


def _attributes(text: str) -> dict[str, str]:
    found = _ATTRIBUTE.finditer(text)
    return {one[1]: without_entities(one[2] or one[3] or one[4] or "") for one in found}
