"""Derives from a chat request's tools how its answer is parsed, and the grammar that constrains the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.errors import InvalidRequest
from headrace.formats.call_grammar import CallableTool, call_grammar
from headrace.formats.machine import Machine
from headrace.formats.values import Schemas
from headrace.server.model_formats import ModelFormats
from headrace.server.schemas import ChatRequest, FunctionTool
from headrace.types import Constraint

__all__ = ["ToolUse", "after_reasoning", "prompt_reasons", "tool_use"]

_NAME = re.compile(r"[a-zA-Z0-9_.\-]{1,128}")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The parser and the constraint of one request's answer."""

    machine: Machine | None = None
    """None: all text is content."""
    schemas: Schemas = field(default_factory=dict)
    single: bool = False
    """At most one call is reported."""
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class _ToolChoice:
    """The meaning of `tool_choice`."""

    forced: bool
    names: Sequence[str] | None
    """The tools that may be called; None: all."""
    single: bool = False


def tool_use(body: ChatRequest, formats: ModelFormats) -> ToolUse:
    """The parser and the constraint of a request. Raises InvalidRequest for tools that this model cannot use, and for a
    `tool_choice` that does not match them."""
    tools = _by_name(body)
    choice = _choice(body, tools)
    if not tools or choice is None:
        return ToolUse(formats.without_tools)
    if formats.tools is None:
        message = (
            "`tools`: the format of this model's tool calls is not known: start the server with --tool-format NAME, "
            "or leave the tools out"
        )
        raise InvalidRequest(message, "tools", "unsupported_value")
    allowed = [tool for name, tool in tools.items() if choice.names is None or name in choice.names]
    single = choice.single or body.parallel_tool_calls is False
    constraint = None
    if choice.forced or choice.names is not None or any(tool.strict for tool in allowed):
        constraint = _held(formats, allowed, choice.forced, single)
    schemas = {name: tool.parameters for name, tool in tools.items() if tool.parameters is not None}
    return ToolUse(formats.with_tools, schemas, single, constraint)


def _by_name(body: ChatRequest) -> dict[str, FunctionTool]:
    found: dict[str, FunctionTool] = {}
    for tool in body.tools or ():
        function = tool.function
        if function.name in found:
            message = f"`tools` has two functions with the name {function.name!r:.100}"
            raise InvalidRequest(message, "tools", "invalid_value")
        kind = (function.parameters or {}).get("type", "object")
        if "object" not in (kind if isinstance(kind, list) else [kind]):
            message = (
                f"`tools`: the parameters of {function.name!r:.100} are of type {kind!r:.100}: a call's arguments are "
                "an object"
            )
            raise InvalidRequest(message, "tools", "invalid_value")
        found[function.name] = function
    return found


def _choice(body: ChatRequest, tools: Mapping[str, FunctionTool]) -> _ToolChoice | None:
    """None: no tool may be called."""
    given = body.tool_choice
    if given is None or given == "auto":
        return _ToolChoice(False, None)
    if given == "none":
        return None
    if not tools:
        raise InvalidRequest("`tool_choice` needs `tools`", "tool_choice", "invalid_value")
    if given == "required":
        return _ToolChoice(True, None)
    if isinstance(given, dict) and given.get("type") == "function":
        return _ToolChoice(True, [_known_name(given, tools)], single=True)
    if isinstance(given, dict) and given.get("type") == "allowed_tools":
        return _allowed(given.get("allowed_tools"), tools)
    message = (
        '`tool_choice` must be "auto", "none", "required", {"type": "function", "function": {"name": …}} or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}'
    )
    raise InvalidRequest(message, "tool_choice", "invalid_value")


def _known_name(given: Any, tools: Mapping[str, FunctionTool]) -> str:
    function = given.get("function") if isinstance(given, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        message = '`tool_choice` names no function: write {"type": "function", "function": {"name": …}}'
        raise InvalidRequest(message, "tool_choice", "invalid_value")
    if name not in tools:
        message = f"`tool_choice` names {name!r:.100}, which is not among `tools`"
        raise InvalidRequest(message, "tool_choice", "invalid_value")
    return name


def _allowed(given: Any, tools: Mapping[str, FunctionTool]) -> _ToolChoice:
    listed = given.get("tools") if isinstance(given, dict) else None
    mode = given.get("mode") if isinstance(given, dict) else None
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        message = "`tool_choice.allowed_tools` needs `mode` (auto or required) and a list `tools` that is not empty"
        raise InvalidRequest(message, "tool_choice.allowed_tools", "invalid_value")
    return _ToolChoice(mode == "required", [_known_name(tool, tools) for tool in listed])


def _held(formats: ModelFormats, tools: Sequence[FunctionTool], forced: bool, single: bool) -> Constraint:
    """The constraint under which only these tools are called, in the model's own format."""
    assert formats.tools is not None
    assert formats.with_tools is not None
    for tool in tools:
        if not _NAME.fullmatch(tool.name):
            message = f"`tools`: the name {tool.name!r:.100} must be of 1 to 128 letters, digits, _, . and -"
            raise InvalidRequest(message, "tools", "invalid_value")
    functions = [
        CallableTool(
            tool.name,
            _arguments(tool, forced),
            bool(tool.strict),
        )
        for tool in tools
    ]
    machine = formats.with_tools
    try:
        found = call_grammar(
            formats.tools,
            functions,
            formats.ids.get,
            machine.markers | machine.inline,
            free_text=not forced,
            parallel=not single,
        )
    except ValueError as error:
        raise InvalidRequest(f"`tools`: {error}", "tools", "unsupported_value") from error
    text = json.dumps({"lark": found.lark, "schemas": found.schemas, "strict": found.strict, "texts": found.texts})
    return Constraint("tool_calls", text, field="tools")


def _arguments(tool: FunctionTool, forced: bool) -> Mapping[str, Any] | None:
    """The schema of the arguments. Without `strict` and without being forced, they are any object."""
    if tool.parameters is None:
        return None
    if not forced and not tool.strict:
        return {"type": "object"}
    # The strict rules want properties beside the type, which a reference has elsewhere.
    return tool.parameters if tool.strict and "type" not in tool.parameters else {**tool.parameters, "type": "object"}


def prompt_reasons(formats: ModelFormats, prompt: str, continued: str | None) -> bool | None:
    """True if the prompt has started the reasoning, False if it has ended it, else None. `continued`: the text of
    the message that the answer continues."""
    reasoning = formats.reasoning
    if reasoning is None or not reasoning.prompt_opens:
        return None
    ends = tuple(reasoning.closes | reasoning.dropped)
    if continued is not None:
        opened = max(map(continued.rfind, reasoning.prompt_opens))
        closed = max(map(continued.rfind, ends))
        return None if opened == closed == -1 else opened > closed
    end = prompt.rstrip()
    if end.endswith(reasoning.prompt_opens):
        return True
    return False if end.endswith(ends) else None


def after_reasoning(constraint: Constraint, formats: ModelFormats, reasons: bool | None) -> Constraint:
    """The constraint. It waits for the end of the reasoning if there may be any and its markers are special tokens."""
    reasoning = formats.reasoning
    if reasoning is None or reasons is False:
        return constraint
    closes = {reasoning.last_token} if reasoning.last_token else reasoning.closes
    ends = tuple(formats.ids[marker] for marker in closes if marker in formats.ids)
    opens = tuple(formats.ids[marker] for marker in reasoning.opens if marker in formats.ids)
    if not ends or not (reasons or opens):
        return constraint
    return replace(constraint, after=ends, opens=() if reasons else opens)
