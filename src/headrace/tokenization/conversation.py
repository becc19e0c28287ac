"""Converts chat messages into the form that a template accepts.

As in transformers' `apply_chat_template`, keys without a value are left out, and reasoning is given under each name
that templates read. The rest depends on the template (`template_forms`); a form that it accepts is not changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import InvalidRequest
from headrace.tokenization.template_forms import TemplateForms

__all__ = ["normalize_messages"]

_REASONING = ("reasoning_content", "thinking", "reasoning")
_MEDIA = {"image_url": "an image", "input_audio": "audio", "file": "a file"}


def normalize_messages(messages: Sequence[Mapping[str, Any]], forms: TemplateForms) -> list[dict[str, Any]]:
    """The messages as new dicts; the caller's stay unchanged. Raises InvalidRequest with the path of a wrong field."""
    if not messages:
        raise _wrong("messages", "give at least one message")
    return [_message(message, f"messages[{i}]", forms) for i, message in enumerate(messages)]


def _message(message: Mapping[str, Any], path: str, forms: TemplateForms) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _wrong(path, f"must be an object, not {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _wrong(f"{path}.role", "is required")
    if role == "developer" and not forms.developer:
        role = "system"
    uniform = {key: value for key, value in message.items() if value is not None} | {"role": role}
    calls = uniform.pop("tool_calls", None) or []
    if not isinstance(calls, (list, tuple)):
        raise _wrong(f"{path}.tool_calls", f"must be a list, not {type(calls).__name__}")
    if calls:
        uniform["tool_calls"] = [_call(call, f"{path}.tool_calls[{i}]", forms) for i, call in enumerate(calls)]
    content = _content(message.get("content"), role, f"{path}.content", forms)
    uniform["content"] = content
    if calls and not content and (message.get("content") is None or forms.empty_hides_calls):
        uniform |= {"content": None if forms.no_content == "null" else ""}
        if forms.no_content == "missing":
            del uniform["content"]
    return _with_reasoning(uniform)


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    given = [message[name] for name in _REASONING if name in message]
    return {"thinking": given[0], **message, "reasoning_content": given[0]} if given else message


def _content(content: Any, role: str, path: str, forms: TemplateForms) -> str | list[dict[str, str]]:
    form = forms.content.get(role, "text")
    if content is None:
        if role != "assistant":
            raise _wrong(path, f"a message of the role {role} needs content")
        content = ""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if form == "parts" else content
    if not isinstance(content, (list, tuple)):
        raise _wrong(path, f"must be a string or a list of parts, not {type(content).__name__}")
    texts = [_part(part, f"{path}[{i}]") for i, part in enumerate(content)]
    return "\n".join(texts) if form == "text" else [{"type": "text", "text": text} for text in texts]


def _part(part: Any, path: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise _wrong(path, f"must be an object, not {type(part).__name__}")
    kind = part.get("type", "text")
    text = part.get(kind) if kind in ("text", "refusal") else None
    if kind not in ("text", "refusal"):
        what = _MEDIA.get(kind, f"a part of type {kind}")
        raise InvalidRequest(f"`{path}`: {what} cannot be given to a text model", path, "unsupported_content")
    if not isinstance(text, str):
        raise _wrong(f"{path}.{kind}", "must be a string")
    return text


def _call(call: Any, path: str, forms: TemplateForms) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise _wrong(f"{path}.function", "must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _wrong(f"{path}.function.name", "is required")
    arguments = _arguments(function.get("arguments"), f"{path}.function.arguments", forms)
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _arguments(arguments: Any, path: str, forms: TemplateForms) -> dict[str, Any] | str:
    """The arguments in the template's form. They are checked in both forms."""
    given = arguments
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        given = arguments = {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise _wrong(path, f"not valid JSON: {error}") from error
    if not isinstance(arguments, Mapping):
        raise _wrong(path, f"must be a JSON object, not {type(arguments).__name__}")
    if isinstance(given, str):
        return given if forms.arguments != "object" else dict(arguments)
    return json.dumps(arguments, ensure_ascii=False) if forms.arguments == "text" else dict(arguments)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _wrong(path: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"`{path}`: {why}", path, "invalid_value")
