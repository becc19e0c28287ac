"""Translates a body of OpenAI's Responses API into the internal form of a conversation."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from headrace.errors import InvalidRequest
from headrace.server.responses_schemas import InputItem, InputPart, ResponsesRequest, ResponsesTool

__all__ = ["chat_fields"]

_log = logging.getLogger(__name__)
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_LOGPROBS = "message.output_text.logprobs"


def chat_fields(body: ResponsesRequest, items: Sequence[InputItem]) -> tuple[dict[str, Any], list[str]]:
    """(The fields of chat completions, the names of what is ignored). `items`: the whole input, with the items of
    earlier responses. Raises InvalidRequest with the path of the wrong field as the client wrote it."""
    ignored: list[str] = []
    if body.background:
        message = "`background` is not supported: stream the response, or wait for it"
        raise InvalidRequest(message, "background", "unsupported_value")
    tools = _tools(body, ignored)
    told = [{"role": "system", "content": body.instructions}] if body.instructions else []
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": [*told, *_Turns().read(items)],
        "tools": tools,
        "tool_choice": _choice(body.tool_choice) if tools or body.tool_choice not in (None, "auto", "none") else None,
        "parallel_tool_calls": body.parallel_tool_calls,
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stream": body.stream,
        "response_format": _format(body),
        "reasoning_effort": body.reasoning and body.reasoning.effort,
    }
    if body.top_logprobs is not None or _LOGPROBS in (body.include or ()):
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    if body.truncation not in (None, "disabled"):
        ignored.append("truncation")
    return fields, ignored


def _format(body: ResponsesRequest) -> dict[str, Any] | None:
    asked = body.text and body.text.format
    if not asked or asked.type == "text":
        return None
    if asked.type == "json_object":
        return {"type": "json_object"}
    if asked.schema is None:
        param = "text.format.schema"
        raise InvalidRequest(f"`{param}` is required", param, "missing_required_parameter")
    named = {"schema": asked.schema, "name": asked.name, "description": asked.description, "strict": asked.strict}
    return {"type": "json_schema", "json_schema": {key: value for key, value in named.items() if value is not None}}


def _tools(body: ResponsesRequest, ignored: list[str]) -> list[dict[str, Any]] | None:
    """Agents always list tools of OpenAI's servers beside their own functions: those are left out."""
    tools = body.tools or []
    ours = [tool for tool in tools if tool.type == "function"]
    for at, tool in enumerate(tools):
        if tool.type == "function":
            continue
        if not ours:
            message = f"`tools[{at}]`: tools of the type {tool.type!r:.60} are not supported: give functions"
            raise InvalidRequest(message, f"tools[{at}].type", "unsupported_value")
        _log.info("a request's tool of the type %.60s is left out: this server cannot run it", tool.type)
        ignored.append(f"tools[{at}]")
    return [_tool(tool, tools.index(tool)) for tool in ours] or None


def _tool(tool: ResponsesTool, at: int) -> dict[str, Any]:
    if tool.name is None:
        raise InvalidRequest(f"`tools[{at}].name` is required", f"tools[{at}].name", "missing_required_parameter")
    given = {"name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
    return {"type": "function", "function": {key: value for key, value in given.items() if value is not None}}


def _choice(given: str | dict[str, Any] | None) -> Any:
    """Flat names become nested ones. What is not known is refused as a choice of chat completions."""
    if not isinstance(given, dict):
        return given
    if given.get("type") == "function":
        return {"type": "function", "function": {"name": given.get("name")}}
    if given.get("type") == "allowed_tools":
        listed = given.get("tools")
        tools = [_choice(tool) for tool in listed] if isinstance(listed, list) else listed
        return {"type": "allowed_tools", "allowed_tools": {"mode": given.get("mode"), "tools": tools}}
    message = f"`tool_choice`: tools of the type {str(given.get('type'))!r:.60} are not supported"
    raise InvalidRequest(message, "tool_choice", "unsupported_value")


class _Turns:
    """Messages of items. Reasoning, an answer and its calls, in a row, are one message of the assistant."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._turn: dict[str, Any] | None = None

    def read(self, items: Sequence[InputItem]) -> list[dict[str, Any]]:
        for at, item in enumerate(items):
            self._item(item, f"input[{at}]")
        if not self._messages:
            raise InvalidRequest("`input` is empty: give at least one message", "input", "invalid_value")
        return self._messages

    def _item(self, item: InputItem, path: str) -> None:
        kind = item.type or "message"
        if kind == "message":
            self._message(item, path)
        elif kind == "reasoning":
            turn = self._assistant("reasoning_content", "content", "tool_calls")
            turn["reasoning_content"] = _thoughts(item)
        elif kind in _CALLS:
            turn = self._assistant()
            turn.setdefault("content", None)
            turn.setdefault("tool_calls", []).append(_call(item, path))
        elif kind in _OUTPUTS:
            self._turn = None
            content = _content(_given(item.output, f"{path}.output"), f"{path}.output")
            called = _given(item.call_id or item.id, f"{path}.call_id")
            self._messages.append({"role": "tool", "tool_call_id": called, "content": content})
        else:
            message = f"`{path}.type`: items of the type {kind!r:.60} are not supported"
            raise InvalidRequest(message, f"{path}.type", "unsupported_value")

    def _message(self, item: InputItem, path: str) -> None:
        role = _given(item.role, f"{path}.role")
        content = _content(_given(item.content, f"{path}.content"), f"{path}.content")
        if role == "assistant":
            self._assistant("content", "tool_calls")["content"] = content
            return
        self._turn = None
        self._messages.append({"role": role, "content": content})

    def _assistant(self, *ends: str) -> dict[str, Any]:
        """The assistant's turn under way; a new one if it has any of `ends` already."""
        if self._turn is None or any(self._turn.get(key) for key in ends):
            self._turn = {"role": "assistant"}
            self._messages.append(self._turn)
        return self._turn


def _given(value: Any, path: str) -> Any:
    if value is None:
        raise InvalidRequest(f"`{path}` is required", path, "missing_required_parameter")
    return value


def _thoughts(item: InputItem) -> str:
    """The reasoning, which stands in one of three places."""
    if isinstance(item.content, list) and item.content:
        return "".join(part.text or "" for part in item.content)
    return item.encrypted_content or "\n\n".join(part.text or "" for part in item.summary or ())


def _call(item: InputItem, path: str) -> dict[str, Any]:
    name, arguments = item.name, item.arguments
    if item.type == "custom_tool_call":
        arguments = json.dumps({"input": item.input or ""}, ensure_ascii=False)
    elif item.type == "local_shell_call":
        name, arguments = "local_shell", json.dumps(item.action, ensure_ascii=False)
    function = {"name": _given(name, f"{path}.name"), "arguments": arguments or "{}"}
    return {"id": _given(item.call_id, f"{path}.call_id"), "type": "function", "function": function}


def _content(given: str | Sequence[InputPart], path: str) -> str | list[dict[str, Any]]:
    if isinstance(given, str):
        return given
    parts = [_part(part, f"{path}[{at}]") for at, part in enumerate(given)]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts or ""


def _part(part: InputPart, path: str) -> dict[str, Any]:
    if part.type in _TEXTS:
        return {"type": "text", "text": _given(part.text, f"{path}.text")}
    if part.type == "refusal":
        return {"type": "text", "text": _given(part.refusal, f"{path}.refusal")}
    if part.type == "input_image":
        url = {"url": _given(part.image_url, f"{path}.image_url")}
        return {"type": "image_url", "image_url": url if part.detail is None else {**url, "detail": part.detail}}
    message = f"`{path}.type`: parts of the type {part.type!r:.60} are not supported"
    raise InvalidRequest(message, f"{path}.type", "unsupported_value")
