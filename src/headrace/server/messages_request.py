"""Translates a body of Anthropic's messages API into the internal form of a conversation."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from headrace.errors import InvalidRequest
from headrace.server.messages_schemas import (
    ContentBlock,
    CountTokensRequest,
    InputMessage,
    MessagesRequest,
    MessagesTool,
)

__all__ = ["chat_fields"]

_log = logging.getLogger(__name__)
_BILLING = "x-anthropic-billing-header"
"""Begins a system block of Claude Code that changes with every request, so that no prefix would be found again."""
_FORCED = {"auto": "auto", "any": "required", "none": "none"}
Parts = list[dict[str, Any]]


def chat_fields(body: CountTokensRequest) -> tuple[dict[str, Any], list[str]]:
    """(The fields of chat completions, the names of what is ignored). Raises InvalidRequest with the path of the wrong
    field as the client wrote it."""
    ignored: list[str] = []
    messages = _messages(body)
    tools = _tools(body, ignored)
    fields: dict[str, Any] = {"model": body.model, "messages": messages, "tools": tools}
    if body.tool_choice is not None and (tools or body.tool_choice.type != "auto"):
        fields["tool_choice"] = _choice(body)
        fields["parallel_tool_calls"] = False if body.tool_choice.disable_parallel_tool_use else None
    if messages and messages[-1]["role"] == "assistant" and isinstance(messages[-1].get("content"), str):
        fields["continue_final_message"] = True
    _add_thinking(body, fields, ignored)
    if isinstance(body, MessagesRequest):
        fields |= {
            "max_tokens": body.max_tokens,
            "stop": body.stop_sequences or None,
            "stream": body.stream,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
        }
    return fields, ignored


def _add_thinking(body: CountTokensRequest, fields: dict[str, Any], ignored: list[str]) -> None:
    if body.thinking is not None:
        thinks = body.thinking.type != "disabled"
        # Templates look at either name.
        fields["chat_template_kwargs"] = {"enable_thinking": thinks, "thinking": thinks}
        if body.thinking.budget_tokens is not None:
            ignored.append("thinking.budget_tokens")
    output = body.output_config
    if output is not None:
        fields["reasoning_effort"] = output.effort
        if output.format is not None:
            fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": output.format.schema}}


def _messages(body: CountTokensRequest) -> list[dict[str, Any]]:
    if not body.messages:
        raise InvalidRequest("`messages` is empty: give at least one message", "messages", "invalid_value")
    system = _system(body.system)
    found: list[dict[str, Any]] = []
    for at, message in enumerate(body.messages):
        path = f"messages[{at}]"
        if message.role == "system":
            system += _texts(message.content, f"{path}.content")
        elif message.role == "assistant":
            found.append(_assistant(message, path))
        else:
            _add_user(found, message, path)
    return [{"role": "system", "content": _plain(system)}, *found] if system else found


def _system(given: str | Sequence[ContentBlock] | None) -> Parts:
    texts = _texts(given or "", "system")
    return [part for part in texts if not part.get("text", "").startswith(_BILLING)]


def _texts(given: str | Sequence[ContentBlock], path: str) -> Parts:
    if isinstance(given, str):
        return [{"type": "text", "text": given}] if given else []
    parts: Parts = []
    for at, block in enumerate(given):
        parts += _shown(block, f"{path}[{at}]")
    return parts


def _shown(block: ContentBlock, path: str) -> Parts:
    """The parts that a block of text, an image or a document becomes."""
    if block.type == "text":
        return [{"type": "text", "text": _needed(block.text, f"{path}.text")}] if block.text != "" else []
    if block.type == "image":
        return [{"type": "image_url", "image_url": {"url": _image(block.source, path)}}]
    if block.type == "document":
        return [{"type": "text", "text": _document(block, path)}]
    if block.type == "search_result":
        return _texts(block.content or "", f"{path}.content")
    message = f"`{path}.type`: a block of the type {block.type!r:.60} is not supported here"
    raise InvalidRequest(message, f"{path}.type", "unsupported_value")


def _image(source: Any, path: str) -> str:
    if isinstance(source, dict) and source.get("type") == "url":
        return str(source.get("url"))
    if isinstance(source, dict) and source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    raise InvalidRequest(f"`{path}.source` must be of the type base64 or url", f"{path}.source", "invalid_value")


def _document(block: ContentBlock, path: str) -> str:
    source = block.source
    if not isinstance(source, dict) or source.get("type") != "text" or not isinstance(source.get("data"), str):
        message = f"`{path}.source`: only documents of the type text are supported"
        raise InvalidRequest(message, f"{path}.source", "unsupported_value")
    text: str = source["data"]
    return f"{block.title}\n\n{text}" if block.title else text


def _needed(value: str | None, path: str) -> str:
    if value is None:
        raise InvalidRequest(f"`{path}` is required", path, "missing_required_parameter")
    return value


def _plain(parts: Parts) -> str | Parts:
    """One text as it is; several parts as parts, which the template's form decides about."""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _assistant(message: InputMessage, path: str) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": "assistant", "content": message.content}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(message.content):
        place = f"{path}.content[{at}]"
        if block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            name, arguments = _needed(block.name, f"{place}.name"), json.dumps(block.input or {}, ensure_ascii=False)
            calls.append(
                {
                    "id": _needed(block.id, f"{place}.id"),
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
            )
        elif block.type != "redacted_thinking":
            texts += [part["text"] for part in _shown(block, place) if part["type"] == "text"]
    found: dict[str, Any] = {"role": "assistant"}
    if texts or not (calls or thoughts):
        found["content"] = "".join(texts)
    if thoughts:
        found["reasoning_content"] = "".join(thoughts)
    if calls:
        found["tool_calls"] = calls
        found.setdefault("content", None)
    return found


def _add_user(found: list[dict[str, Any]], message: InputMessage, path: str) -> None:
    """Tool results become messages of their own, before what the user says. A user's turns in a row are one."""
    parts: Parts = []
    if isinstance(message.content, str):
        parts = [{"type": "text", "text": message.content}]
    else:
        for at, block in enumerate(message.content):
            place = f"{path}.content[{at}]"
            if block.type == "tool_result":
                content = _plain(_texts(block.content or "", f"{place}.content")) or ""
                called = _needed(block.tool_use_id, f"{place}.tool_use_id")
                found.append({"role": "tool", "tool_call_id": called, "content": content})
            else:
                parts += _shown(block, place)
    if not parts:
        if not isinstance(message.content, str) and any(block.type == "tool_result" for block in message.content):
            return
        raise InvalidRequest(f"`{path}.content` is empty", f"{path}.content", "invalid_value")
    if found and found[-1]["role"] == "user":
        before = found[-1]["content"]
        parts = ([{"type": "text", "text": before}] if isinstance(before, str) else before) + parts
        found.pop()
    found.append({"role": "user", "content": _plain(parts)})


def _tools(body: CountTokensRequest, ignored: list[str]) -> list[dict[str, Any]] | None:
    tools = body.tools or []
    ours = [tool for tool in tools if tool.type in (None, "custom")]
    forced = body.tool_choice.name if body.tool_choice is not None else None
    for at, tool in enumerate(tools):
        if tool.type in (None, "custom"):
            continue
        if not ours or tool.name == forced:
            message = f"`tools[{at}]`: tools of the type {tool.type!r:.60} run on Anthropic's servers alone"
            raise InvalidRequest(message, f"tools[{at}].type", "unsupported_value")
        _log.info("a request's tool of the type %.60s is left out: this server cannot run it", tool.type)
        ignored.append(f"tools[{at}]")
    return [_tool(tool, at) for at, tool in enumerate(ours)] or None


def _tool(tool: MessagesTool, at: int) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.input_schema is None:
        param = f"tools[{at}].input_schema"
        raise InvalidRequest(f"`{param}` is required", param, "missing_required_parameter")
    function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(body: CountTokensRequest) -> str | dict[str, Any]:
    choice = body.tool_choice
    assert choice is not None
    if choice.type == "tool":
        name = _needed(choice.name, "tool_choice.name")
        return {"type": "function", "function": {"name": name}}
    return _FORCED[choice.type]
