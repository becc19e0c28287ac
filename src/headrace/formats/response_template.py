"""Formats from the `response_template` of a tokenizer_config.json (transformers 5.13 and later).

It describes a model's answers: `fields` (`thinking`, `content`, `tool_calls`), each between an opening and a closing
marker, given as text or as a regular expression, with the form of its content and a transformation of it. What is one
of our formats is read by that one. Other markers around JSON or reasoning make a format of their own. The regular
expressions are not run, since the file is not trusted; their literal parts are compared.

https://huggingface.co/docs/transformers/main/chat_response_parsing
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.formats.json_reader import JsonArgumentsReader, JsonCallsReader
from headrace.formats.reasoning_forms import REASONING_FORMATS
from headrace.formats.states import CallForm, ReasoningFormat, State, ToolFormat
from headrace.formats.tool_formats import TOOL_FORMATS

__all__ = ["DeclaredFormats", "read_response_template"]

_NAME = "response_template"
_THINKING = ("thinking", "reasoning_content", "reasoning")
_GAP = "\0"
"""In spelled text: what a regular expression says that is no literal."""
_GROUP = re.compile(r"\(\?P<(\w+)>[^()]*\)")
_MARKUP = re.compile(r"\(\?(?:P?<\w+>|[:=!]|<[=!])|\[(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|[.*+?|()^$]")
_CONTROL = {"n": "\n", "t": "\t", "r": "\r"}
_LONGEST = 1 << 13
"""Characters of a template that are read."""
NAME, ARGUMENTS = CallForm.NAME, CallForm.ARGUMENTS
_KEYS = re.compile(r"\{(?:content\.)?(\w+)\}")

# The literals of `tool_calls` by which a format is told; the first row that fits counts.
_TOOL_ROWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "to=functions")),
    ("kimi_k3", ("<|open|>", "call")),
    ("mistral_v11", ("[TOOL_CALLS]", "[CALL_ID]")),
    ("mistral_v13", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral_v3", ("[TOOL_CALLS]",)),
    ("kimi_k2", ("<|tool_call_begin|>",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v4", ("｜DSML｜", "tool_calls>")),
    ("deepseek_v32", ("｜DSML｜",)),
    ("deepseek_v3", ("<｜tool▁call", "```json")),
    ("deepseek_v31", ("<｜tool▁call",)),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("gemma4", ("<|tool_call>",)),
    ("function_gemma", ("<start_function_call>",)),
    ("cohere_xml", ("<cofl:tool_call",)),
    ("cohere_json", ("<|START_ACTION|>",)),
    ("glm45", ("<arg_key>", "</arg_key>\n")),
    ("glm47", ("<arg_key>",)),
    ("qwen3_coder", ("<function=",)),
    ("phi4_mini", ("<|tool_call|>", "<|/tool_call|>")),
    ("granite30", ("<|tool_call|>",)),
    ("llama3_json", ("<|python_tag|>",)),
)
_THINKING_ROWS = (
    ("<|channel|>analysis", "harmony"),
    ("<|open|>think", "kimi_k3"),
    ("<|channel>", "gemma4"),
    ("<think>", "think"),
    ("</think>", "think"),
    ("[THINK]", "mistral"),
    ("<|START_THINKING|>", "cohere"),
    ("<seed:think>", "seed"),
    ("<mm:think>", "minimax_m3"),
    ("Here is my thought process:", "granite"),
)


@dataclass(slots=True)
class DeclaredFormats:
    """The formats that a template declares. None: it has none that we can read."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    ignored: list[str] = field(default_factory=list)
    """The parts of the template that are not used, each with the reason."""


class _Unused(Exception):
    """The reason why a field is not used."""


def read_response_template(template: Any) -> DeclaredFormats:
    """Raises nothing: what cannot be read is in `ignored`. `template`: the value in the file; None: there is none."""
    found = DeclaredFormats()
    if template is None:
        return found
    fields = template.get("fields") if isinstance(template, Mapping) else None
    if not isinstance(fields, Mapping) or template.get("version", 1) != 1 or len(json.dumps(template)) > _LONGEST:
        found.ignored.append(f"it is no object of version 1 with `fields` and at most {_LONGEST} characters")
        return found
    for name, given in fields.items():
        _read_field(found, str(name), given)
    _drop_envelope(found, fields.get("content"))
    return found


def _read_field(found: DeclaredFormats, name: str, given: Any) -> None:
    try:
        _use_field(found, name, given)
    except _Unused as why:
        found.ignored.append(f"`{name:.60}` ({why})")


def _use_field(found: DeclaredFormats, name: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise _Unused("no object")
    if name == "tool_calls":
        found.tools = _tools(given)
    elif name in _THINKING:
        found.reasoning = _reasoning(given)
    elif name != "content":
        raise _Unused("no part of an answer that is reported")
    elif given.get("content", "text") != "text":
        raise _Unused("content that is no text")


# Tool calls


def _tools(given: Mapping[str, Any]) -> ToolFormat:
    spelled = _all_text(given)
    for name, literals in _TOOL_ROWS:
        if all(literal in spelled for literal in literals):
            return TOOL_FORMATS[name]
    content = given.get("content", "text")
    if content == "python-call-list":
        return TOOL_FORMATS["pythonic"]
    if content != "json":
        raise _Unused(f"content {content!r:.60} between markers of no format that is known")
    options = given.get("content_args") or {}
    if not isinstance(options, Mapping) or options.keys() - {"allow_non_json"}:
        raise _Unused("a dialect of JSON between markers of no format that is known")
    opens, closes = _literals(given, "open"), _literals(given, "close")
    if "open_pattern" in given and not opens:
        return _named_calls(given)
    names = _key_names(given.get("transform"))
    if "<tool_call>" in opens and not names:
        listed = "granite31" if "</tool_call>" not in closes else "smollm2"
        return TOOL_FORMATS[listed if given.get("transform_each") else "hermes"]
    if not opens:
        raise _Unused("no marker that opens it")
    body = State("reader", reader=lambda _: JsonCallsReader(names=names), then="after")
    keys = {ours: theirs for theirs, ours in names.items()}
    call = (f'{{"{keys.get("name", "name")}": "', NAME, f'", "{keys.get("arguments", "arguments")}": ', ARGUMENTS, "}")
    close = closes[0] if closes else ""
    form = CallForm((opens[0] + call[0], *call[1:-1], call[-1] + close), trigger=opens[0])
    if given.get("transform_each"):
        form = CallForm(call, begin=f"{opens[0]}[", between=", ", end=f"]{close}", trigger=opens[0])
    states = {"body": body, "after": _after(opens, closes, "body")}
    return ToolFormat(_NAME, dict.fromkeys(opens, "body"), states, form=form)


def _after(opens: tuple[str, ...], closes: tuple[str, ...], next_call: str) -> State:
    return State("skip", {**dict.fromkeys(closes, "start"), **dict.fromkeys(opens, next_call)})


def _named_calls(given: Mapping[str, Any]) -> ToolFormat:
    """Calls whose name stands between two literals of the opening pattern, and whose content is the arguments."""
    pattern = str(given["open_pattern"])
    groups = list(_GROUP.finditer(pattern))
    before, _, after = _spelled(_GROUP.sub("\x01", pattern)).partition("\x01")
    function = _function(given.get("transform"))
    plain = len(groups) == 1 and before and after and _GAP not in before + after
    if not plain or function != {"name": f"{{{groups[0][1]}}}", "arguments": "{content}"}:
        raise _Unused("an opening pattern of more than two literals around the name")
    closes = _literals(given, "close")
    states = {
        "name": State("name", {after: "arguments"}),
        "arguments": State("reader", reader=lambda _: JsonArgumentsReader(), then="after"),
        "after": _after((before,), closes, "name"),
    }
    form = CallForm((before, NAME, after, ARGUMENTS, closes[0] if closes else ""))
    return ToolFormat(_NAME, {before: "name"}, states, form=form)


def _function(transform: Any) -> Any:
    return transform.get("function") if isinstance(transform, Mapping) else None


def _key_names(transform: Any) -> dict[str, str]:
    """Names of keys in a call's JSON that differ from ours, and what ours are."""
    function = _function(transform)
    if function == "{content}":
        return {}
    if not isinstance(function, Mapping) or not {"name", "arguments"} <= function.keys():
        raise _Unused("a transformation that gives no name and arguments")
    names = {}
    for ours in ("name", "arguments"):
        key = _KEYS.fullmatch(str(function[ours]))
        if key is None:
            raise _Unused(f"a transformation with {function[ours]!r:.60}")
        names[key[1]] = ours
    return {theirs: ours for theirs, ours in names.items() if theirs != ours and (theirs, ours) != _PARAMETERS}


_PARAMETERS = ("parameters", "arguments")
"""Understood by our reader of JSON."""

# Reasoning and content


def _reasoning(given: Mapping[str, Any]) -> ReasoningFormat:
    if given.get("content", "text") != "text":
        raise _Unused("content that is no text")
    spelled = _all_text(given)
    for literal, name in _THINKING_ROWS:
        if literal in spelled:
            return REASONING_FORMATS[name]
    opens, closes = _literals(given, "open"), _literals(given, "close")
    if not opens or not closes:
        raise _Unused("no markers on both sides of it")
    return ReasoningFormat(_NAME, dict.fromkeys(opens, "reasoning"), frozenset(closes), prompt_opens=opens)


def _drop_envelope(found: DeclaredFormats, content: Any) -> None:
    """Markers around the content are no part of it."""
    if not isinstance(content, Mapping) or not _literals(content, "open"):
        return
    around = frozenset(_literals(content, "open") + _literals(content, "close"))
    # A format that is one table of messages has its own.
    if found.tools is not None and "start" not in found.tools.states:
        found.tools = replace(found.tools, dropped=found.tools.dropped | around)
    if found.reasoning is not None and found.reasoning.complete is None:
        found.reasoning = replace(found.reasoning, dropped=found.reasoning.dropped | around)


# Text


def _literals(given: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A marker's texts without blanks around them: those given, or the pattern if it is a literal."""
    value = given.get(key)
    texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    if not texts and isinstance(given.get(f"{key}_pattern"), str):
        pattern = _spelled(given[f"{key}_pattern"])
        texts = [] if _GAP in pattern else [pattern]
    return tuple(text.strip() for text in texts if isinstance(text, str) and text.strip())


def _all_text(given: Mapping[str, Any]) -> str:
    """All literals of a field."""
    found: list[str] = []
    for key in ("open", "close"):
        value = given.get(key)
        found += map(str, value if isinstance(value, list) else [value])
        found.append(_spelled(str(given.get(f"{key}_pattern") or "")))
    arguments = given.get("content_args")
    if isinstance(arguments, Mapping):
        found.append(_spelled(str(arguments.get("tag_pattern") or "")))
    return _GAP.join(found)


def _spelled(pattern: str) -> str:
    """A regular expression with its literals as they are, blanks that are optional left out, and gaps for the rest."""
    found: list[str] = []
    at = 0
    while at < len(pattern):
        markup = _MARKUP.match(pattern, at)
        if markup is not None:
            found.append(_GAP)
            at = markup.end()
        elif pattern[at] == "\\" and at + 1 < len(pattern):
            char = pattern[at + 1]
            blanks = pattern[at : at + 3] in ("\\s*", "\\n?", "\\n*")
            found.append("" if blanks else _CONTROL.get(char, _GAP if char.isalnum() else char))
            at += 3 if blanks else 2
        else:
            found.append(pattern[at])
            at += 1
    return "".join(found)
