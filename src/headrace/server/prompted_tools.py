"""Tools for a model whose chat template does not show them: a system text of ours, and calls and results as text.

docs/server.md has the text. The model is asked for the form that SmolLM2's model card describes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["prompted_messages"]

_INTRODUCTION = """You can call functions. Each line between <tools> and </tools> describes one function as JSON:

<tools>
"""
_RULES = """
</tools>

To call functions, answer with nothing but a JSON list of the calls, in this form:

<tool_call>[{"name": "function_name", "arguments": {"argument_name": "value"}}]</tool_call>

The results follow between <tool_response> and </tool_response>. If no function fits, answer in words."""


def prompted_messages(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The messages with the tools as text, for `apply_chat_template` without tools."""
    listed = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    text = _INTRODUCTION + listed + _RULES
    first, rest = messages[:1], [_plain(message) for message in messages[1:]]
    if first and first[0].get("role") in ("system", "developer"):
        return [{**first[0], "content": _joined(first[0].get("content"), text)}, *rest]
    return [{"role": "system", "content": text}, *map(_plain, first), *rest]


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with its calls, or its result, as text."""
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>{_text(message.get('content'))}</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = [_call(call.get("function") or {}) for call in calls]
    text = f"<tool_call>[{', '.join(written)}]</tool_call>"
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**plain, "content": _joined(message.get("content"), text) if message.get("content") else text}


def _call(function: dict[str, Any]) -> str:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    name = json.dumps(function.get("name"), ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {arguments.strip() or "{}"}}}'


def _joined(content: Any, text: str) -> str:
    return f"{_text(content)}\n\n{text}"


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)
    return "" if content is None else str(content)
