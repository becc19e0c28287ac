"""The grammar that holds an answer to tool calls in the model's own format.

The result is Lark text for llguidance. It refers to the schemas by the rules `schema_0`, `schema_1`…, and to texts of a
limited form by the terminals `PATTERN_0`, `PATTERN_1`…, which whoever compiles it adds. Free text before a call ends at
the first trigger, and special tokens stand by their ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.formats.grammar_text import GrammarText, joined
from headrace.formats.parameter_grammar import ParameterGrammar
from headrace.formats.states import CallForm, Part, ToolFormat

__all__ = ["CallGrammar", "CallableTool", "call_grammar"]

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


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
    texts: list[dict[str, Any]]
    """Those of `PATTERN_0` and so on (`GrammarText.texts`)."""


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
    return _Builder(tools, tools.form, GrammarText(token_id, markers)).build(functions, free_text, parallel)


@dataclass(frozen=True, slots=True)
class _Builder:
    tools: ToolFormat
    form: CallForm
    out: GrammarText

    def build(self, functions: Sequence[CallableTool], free_text: bool, parallel: bool) -> CallGrammar:
        form, out = self.form, self.out
        trigger = form.trigger or form.begin or form.call[0]
        assert (form.begin + form.call[0]).startswith(trigger)
        bodies = [self._arguments(tool) for tool in functions]
        first = out.add("first", self._calls(functions, bodies, (form.begin, *form.call), trigger))
        more = ""
        if parallel:
            other = out.add("other", self._calls(functions, bodies, form.call, ""))
            more = f" ({out.text(form.between)} {other})*"
        start = self._start(trigger, free_text, parallel)
        calls = f"calls: {first}{more} {out.text(form.end)}"
        lark = "\n".join([*start, calls, *out.lines(), r"TEXT: /(.|\n)*/", ""])
        return CallGrammar(lark, out.schemas, out.strict, out.texts)

    def _start(self, trigger: str, free_text: bool, parallel: bool) -> list[str]:
        """The rules from which all others follow."""
        form, out = self.form, self.out
        opened = out.text(trigger)
        rules = [f"prelude: {' | '.join(map(self._parts, form.preludes))}"] if form.preludes else []
        lead = "prelude? " if form.preludes else ""
        if not free_text:
            return [f"start: {lead}{opened} calls", *rules]
        if form.answer:
            return [f"start: {lead}({opened} calls | {self._parts(form.answer)})", *rules]
        if self.tools.start_chars:
            begins = {*self.tools.start_chars, *(marker[0] for marker in self.tools.opens if not out.has_token(marker))}
            chars = "".join(map(re.escape, sorted(begins)))
            free = f"FREE: /[ \\n\\t]*[^ \\n\\t{chars}](.|\\n)*/"
            return [f"start: {lead}{opened} calls | FREE", free, *rules]
        # Special tokens are not part of TEXT.
        around = [out.until(marker) for marker in sorted(self.tools.dropped) if out.has_token(marker)]
        before = f"({' | '.join(around)})* " if around else ""
        once = f"{before}{out.until(trigger)} calls"
        if parallel:
            return [f"start: ({once})* {before}TEXT"]
        # Text after the call could only have another one if the trigger is no token.
        return [f"start: {once} {before}{'TEXT' * out.has_token(trigger)} | {before}TEXT"]

    def _parts(self, parts: tuple[Part, ...]) -> str:
        found: list[str] = []
        parts = tuple(joined(parts))
        for before, part in zip(("", *parts), parts, strict=False):
            if part != CallForm.FREE:
                found.append(self.out.until(part) if before == CallForm.FREE else self.out.text(part))
        return " ".join([*found, "TEXT"] if parts[-1] == CallForm.FREE else found)

    def _calls(
        self, functions: Sequence[CallableTool], bodies: Sequence[str], parts: Sequence[Part], opened: str
    ) -> str:
        """A call of one of the functions, without the text `opened` at its beginning."""
        rules = []
        for tool, body in zip(functions, bodies, strict=True):
            written = joined(tool.name if part == CallForm.NAME else part for part in parts)
            assert written[0].startswith(opened)
            written[0] = written[0][len(opened) :]
            rules.append(self.out.add("call", " ".join(self._part(part, body) for part in written if part)))
        return " | ".join(rules)

    def _part(self, part: Part, body: str) -> str:
        if part in (CallForm.ARGUMENTS, CallForm.PARAMETERS):
            return body
        fixed = {CallForm.ID9: "/[a-zA-Z0-9]{9}/", CallForm.INDEX: "/[0-9]{1,4}/"}
        return fixed[part] if part in fixed else self.out.text(part)

    def _arguments(self, tool: CallableTool) -> str:
        schema = _NO_PARAMETERS if tool.parameters is None else tool.parameters
        if CallForm.ARGUMENTS in self.form.call:
            return self.out.schema(schema, tool.strict)
        if tool.strict:
            # No rule refers to it: OpenAI's rules are checked with all schemas.
            self.out.schema(schema, strict=True)
        try:
            return self.out.add("parameters", ParameterGrammar(self.out, self.form, schema, tool.name).parameters())
        except ValueError as error:
            raise ValueError(f"{tool.name}: {error} cannot be held in the format {self.tools.name}") from error
