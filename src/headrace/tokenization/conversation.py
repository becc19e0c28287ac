"""Chat messages made uniform before a template sees them.

Most templates test `message.content` and iterate `tool_calls`, so content is always a string here, keys without a value are
left out, and tool arguments are objects. What is uniform already stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import InvalidRequest

__all__ = ["normalize_messages"]


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """New dicts; the caller's are left alone. Raises InvalidRequest with the path of what is wrong."""
    if not messages:
        raise _wrong("messages", "give at least one message")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _wrong(path, f"must be an object, not {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _wrong(f"{path}.role", "is required")
    uniform = {key: value for key, value in message.items() if value is not None}
    calls = uniform.pop("tool_calls", None) or []
    if not isinstance(calls, (list, tuple)):
        raise _wrong(f"{path}.tool_calls", f"must be a list, not {type(calls).__name__}")
    if calls:
        uniform["tool_calls"] = [_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(calls)]
    uniform["content"] = _content(message.get("content"), role, f"{path}.content")
    return uniform


def _content(content: Any, role: str, path: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if role == "assistant":
            return ""
        raise _wrong(path, f"a message of the role {role} needs content")
    if not isinstance(content, (list, tuple)):
        raise _wrong(path, f"must be a string or a list of parts, not {type(content).__name__}")
    return "\n".join(_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _part(part: Any, path: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise _wrong(path, f"must be an object, not {type(part).__name__}")
    kind = part.get("type", "text")
    text = part.get(kind) if kind in ("text", "refusal") else None
    if kind not in ("text", "refusal"):
        raise InvalidRequest(
            f"`{path}`: a part of type {kind} cannot be given to a text model", path, "unsupported_content"
        )
    if not isinstance(text, str):
        raise _wrong(f"{path}.{kind}", "must be a string")
    return text


def _call(call: Any, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise _wrong(f"{path}.function", "must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _wrong(f"{path}.function.name", "is required")
    arguments = _arguments(function.get("arguments"), f"{path}.function.arguments")
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _arguments(arguments: Any, path: str) -> dict[str, Any]:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise _wrong(path, f"not valid JSON: {error}") from error
    if not isinstance(arguments, Mapping):
        raise _wrong(path, f"must be a JSON object, not {type(arguments).__name__}")
    return dict(arguments)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _wrong(path: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"`{path}`: {why}", path, "invalid_value")
