"""The grammar that holds an answer to tool calls in the model's own format.

The result is Lark text for llguidance. It refers to the schemas by the rules `schema_0`, `schema_1`…, which whoever
compiles it adds. Free text before a call ends at the first trigger, and special tokens stand by their ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.formats.states import CallForm, Part, ToolFormat
from headrace.formats.values import parameter_types

__all__ = ["CallGrammar", "CallableTool", "call_grammar"]

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_TEXT_LIMITS = ("pattern", "format", "minLength", "maxLength")


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A function that the model may call."""

    name: str
    parameters: Mapping[str, Any] | None
    """JSON schema; None: it takes none."""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class CallGrammar:
    lark: str
    schemas: list[Mapping[str, Any] | bool]
    """Those of `schema_0` and so on."""
    strict: list[bool]
    """Whether each is held to OpenAI's strict rules."""


def call_grammar(
    tools: ToolFormat,
    functions: Sequence[CallableTool],
    token_id: Callable[[str], int | None],
    markers: Iterable[str],
    *,
    free_text: bool,
    parallel: bool,
) -> CallGrammar:
    """`token_id` gives the id of a special token's text. `free_text`: text may stand in place of calls. `parallel`:
    several calls may be made. Raises ValueError with the reason for what cannot be held."""
    if tools.form is None:
        raise ValueError(f"calls in the format {tools.name} cannot be forced")
    return _Builder(tools, tools.form, token_id, markers).build(functions, free_text, parallel)


@dataclass
class _Builder:
    tools: ToolFormat
    form: CallForm
    token_id: Callable[[str], int | None]
    markers: Iterable[str]
    rules: list[str] = field(default_factory=list)
    schemas: list[Mapping[str, Any] | bool] = field(default_factory=list)
    strict: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ids = {marker: found for marker in self.markers if (found := self.token_id(marker)) is not None}
        special = sorted(self._ids, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, special)) + ")") if special else None

    def build(self, functions: Sequence[CallableTool], free_text: bool, parallel: bool) -> CallGrammar:
        form = self.form
        trigger = form.trigger or form.begin or form.call[0]
        first = form.begin + form.call[0]
        assert first.startswith(trigger)
        rest = [self._call(at, tool, (form.begin, *form.call), trigger) for at, tool in enumerate(functions)]
        self.rules.append(f"first: {' | '.join(rest)}")
        more = ""
        if parallel:
            others = [self._call(at, tool, form.call, "") for at, tool in enumerate(functions)]
            self.rules.append(f"other: {' | '.join(others)}")
            more = f" ({self.text(form.between)} other)*"
        self.rules.append(f"calls: first{more} {self.text(form.end)}")
        start = self._start(trigger, free_text, parallel)
        lark = "\n".join([start, *self.rules, r"TEXT: /(.|\n)*/", ""])
        return CallGrammar(lark, self.schemas, self.strict)

    def _start(self, trigger: str, free_text: bool, parallel: bool) -> str:
        opened = self.text(trigger)
        prelude = self._parts(self.form.prelude)
        before = f"prelude: {prelude}\n" if prelude else ""
        lead = "prelude? " if prelude else ""
        if not free_text:
            return f"{before}start: {lead}{opened} calls"
        if self.form.answer:
            return f"{before}start: {lead}({opened} calls | {self._parts(self.form.answer)})"
        if self.tools.start_chars:
            chars = "".join(map(re.escape, self.tools.start_chars))
            return f"start: {opened} calls | FREE\nFREE: /[ \\n\\t]*[^ \\n\\t{chars}](.|\\n)*/"
        if trigger in self._ids:
            return f"start: TEXT ({opened} calls TEXT){'*' if parallel else '?'}"
        lead = f"trigger[lazy]: TEXT {opened}\n"
        return lead + (
            "start: (trigger calls)* tail\ntail: TEXT" if parallel else "start: trigger calls | tail\ntail: TEXT"
        )

    def text(self, text: str) -> str:
        """Literals and special tokens."""
        pieces = self._split.split(text) if self._split else [text]
        return " ".join(f"<[{self._ids[p]}]>" if p in self._ids else _quoted(p) for p in pieces if p) or '""'

    def _parts(self, parts: tuple[Part, ...]) -> str:
        return " ".join("TEXT" if part == CallForm.FREE else self.text(part) for part in parts)

    def _call(self, at: int, tool: CallableTool, parts: tuple[Part, ...], opened: str) -> str:
        """A rule for one call, without the text `opened` at its beginning."""
        name = f"call_{len(self.rules)}"
        written = _joined(part if part != CallForm.NAME else tool.name for part in parts)
        assert str(written[0]).startswith(opened)
        written = [str(written[0])[len(opened) :], *written[1:]]
        self.rules.append(f"{name}: " + " ".join(self._part(part, tool) for part in written if part))
        return name

    def _part(self, part: Part, tool: CallableTool) -> str:
        if part == CallForm.ARGUMENTS:
            return self._schema(tool.parameters or _NO_PARAMETERS, tool.strict)
        if part == CallForm.PARAMETERS:
            return self._parameters(tool)
        fixed = {CallForm.ID9: "/[a-zA-Z0-9]{9}/", CallForm.INDEX: "/[0-9]{1,4}/"}
        return fixed[part] if part in fixed else self.text(part)

    def _schema(self, schema: Mapping[str, Any] | bool, strict: bool) -> str:
        for at, known in enumerate(self.schemas):
            if known is schema and self.strict[at] == strict:
                return f"schema_{at}"
        self.schemas.append(schema)
        self.strict.append(strict)
        return f"schema_{len(self.schemas) - 1}"

    def _parameters(self, tool: CallableTool) -> str:
        """The parameters in the schema's order, each of which may be left out unless it is required."""
        schema = tool.parameters or _NO_PARAMETERS
        properties, required = schema.get("properties") or {}, schema.get("required") or []
        unsupported = sorted(set(schema) & {"anyOf", "oneOf", "allOf", "$ref", "patternProperties"})
        if unsupported:
            raise ValueError(
                f"{tool.name}: `{unsupported[0]}` of the parameters cannot be held in the format {self.tools.name}"
            )
        written = [(self._parameter(tool, key, value), key in required) for key, value in properties.items()]
        if not self.form.separator:
            return " ".join(rule if needed else f"{rule}?" for rule, needed in written) or '""'
        return self._separated(written)

    def _separated(self, written: list[tuple[str, bool]]) -> str:
        """A separator stands before each parameter but the first that is given."""
        base, separator = f"list_{len(self.rules)}", self.text(self.form.separator)
        for at, (rule, needed) in enumerate(written):
            follow, after = f"{base}_rest_{at + 1}", f"{base}_first_{at + 1}"
            self.rules.append(f"{base}_first_{at}: {rule} {follow}" + ("" if needed else f" | {after}"))
            rest = f"{separator} {rule}"
            self.rules.append(f"{base}_rest_{at}: {rest if needed else f'({rest})?'} {follow}")
        self.rules += [f'{base}_{kind}_{len(written)}: ""' for kind in ("first", "rest")]
        return f"{base}_first_0"

    def _parameter(self, tool: CallableTool, key: str, schema: Any) -> str:
        name = f"parameter_{len(self.rules)}"
        self.rules.append("")
        at = len(self.rules) - 1
        parts = self.form.parameter
        value_at = parts.index(CallForm.VALUE)
        before = _joined(key if part == CallForm.KEY else part for part in parts[:value_at])
        after = "".join(parts[value_at + 1 :])
        value = self._value(tool, key, schema, after)
        self.rules[at] = f"{name}: {' '.join(map(self.text, before))} {value}"
        return name

    def _value(self, tool: CallableTool, key: str, schema: Any, after: str) -> str:
        """A value and the text after it."""
        types = parameter_types({tool.name: tool.parameters or {}}, tool.name, key)
        if self.form.json_values or "string" not in types:
            return f"{self._schema(schema, tool.strict)} {self.text(after) if after else ''}"
        listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(listed, list):
            texts = [item if isinstance(item, str) else json.dumps(item) for item in listed]
            return f"({' | '.join(map(_quoted, texts))}) {self.text(after)}"
        limits = [limit for limit in _TEXT_LIMITS if limit in schema]
        if tool.strict and limits:
            raise ValueError(f"{tool.name}: `{limits[0]}` of {key!r} cannot be held in the format {self.tools.name}")
        for marker in self._ids:
            if after.startswith(marker):
                return f"TEXT {self.text(after)}"
        name = f"value_{len(self.rules)}"
        self.rules.append(f"{name}[lazy]: TEXT {_quoted(after)}")
        return name


def _joined(parts: Iterable[str]) -> list[str]:
    """Adjacent texts as one."""
    found: list[str] = []
    for part in parts:
        if found and not part.startswith("\0") and not found[-1].startswith("\0"):
            found[-1] += part
        else:
            found.append(part)
    return found


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
