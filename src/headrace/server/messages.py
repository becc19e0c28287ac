"""From chat messages to what a chat template sees: plain dicts with text content and parsed tool arguments.

Two thirds of all templates test `message.content` and iterate `tool_calls`, so content is always a string here, and keys
without a value are left out.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import InvalidRequest
from headrace.server.schemas import ChatRequest, ContentPart, Message, TokenizeRequest, Tool, ToolCall

__all__ = ["template_arguments", "template_messages", "template_tools"]

_RESERVED = frozenset(
    "messages conversation tools documents tokenize tokenizer return_tensors return_dict padding truncation max_length "
    "add_generation_prompt continue_final_message chat_template add_special_tokens bos_token eos_token".split()
)


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Raises InvalidRequest with the path of the message or part that is at fault."""
    if not messages:
        raise InvalidRequest("`messages` is empty: give at least one message", "messages", "invalid_value")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Message, path: str) -> dict[str, Any]:
    for field in ("audio", "function_call"):
        if getattr(message, field) is not None:
            raise InvalidRequest(f"`{path}.{field}` is not supported", f"{path}.{field}", "unsupported_value")
    role = "system" if message.role == "developer" else message.role
    rendered: dict[str, Any] = {"role": role, "content": _content(message, path)}
    if message.tool_calls:
        if role != "assistant":
            raise _wrong(f"{path}.tool_calls", f"only an assistant's message calls tools, not a {role}'s")
        rendered["tool_calls"] = [_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)]
    if (reasoning := message.reasoning_content or message.reasoning) is not None:
        rendered["reasoning_content"] = reasoning
    for field in ("name", "tool_call_id"):
        if (value := getattr(message, field)) is not None:
            rendered[field] = value
    return rendered


def _content(message: Message, path: str) -> str:
    content = message.content
    if content is None:
        if message.role == "assistant" and (message.tool_calls or message.refusal is not None):
            return message.refusal or ""
        raise _wrong(f"{path}.content", f"a message of the role {message.role} needs content")
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{path}.content[{i}]") for i, part in enumerate(content))


def _part(part: ContentPart, path: str) -> str:
    if part.type not in ("text", "refusal"):
        message = f"`{path}`: a part of type {part.type} needs a model that reads it; this model reads text alone"
        raise InvalidRequest(message, path, "unsupported_content")
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise InvalidRequest(f"`{path}.{part.type}` is required", f"{path}.{part.type}", "missing_required_parameter")
    return text


def _call(call: ToolCall, path: str) -> dict[str, Any]:
    rendered: dict[str, Any] = {"type": "function"}
    if call.id is not None:
        rendered["id"] = call.id
    rendered["function"] = {
        "name": call.function.name,
        "arguments": _arguments(call.function.arguments, f"{path}.function.arguments"),
    }
    return rendered


def _arguments(arguments: str | dict[str, Any] | None, path: str) -> dict[str, Any]:
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or not arguments.strip():
        return {}
    try:
        parsed = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _wrong(path, f"not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise _wrong(path, f"must be a JSON object, not {type(parsed).__name__}")
    return parsed


def _wrong(param: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}`: {why}", param, "invalid_value")


def template_tools(tools: list[Tool] | None) -> list[dict[str, Any]] | None:
    """Tools as the template sees them; None when there are none. Raises InvalidRequest for `strict`, which nothing enforces."""
    for i, tool in enumerate(tools or ()):
        if tool.function.strict:
            param = f"tools[{i}].function.strict"
            message = f"`{param}`: arguments cannot be held to a schema yet; leave it out or set it to false"
            raise InvalidRequest(message, param, "unsupported_value")
    return [msgspec.to_builtins(tool) for tool in tools] if tools else None


def template_arguments(request: ChatRequest | TokenizeRequest) -> dict[str, Any]:
    """The keyword arguments of `apply_chat_template`. Raises InvalidRequest where two of them contradict each other."""
    resume = bool(request.continue_final_message)
    if resume and request.add_generation_prompt:
        message = "`continue_final_message` and `add_generation_prompt` exclude each other"
        raise InvalidRequest(message, "continue_final_message", "invalid_value")
    messages = request.messages or []
    if resume and messages and messages[-1].role != "assistant":
        message = f"`continue_final_message` continues an assistant's message, but the last is a {messages[-1].role}'s"
        raise InvalidRequest(message, "continue_final_message", "invalid_value")
    generate = not resume if request.add_generation_prompt is None else request.add_generation_prompt
    return {
        "tools": template_tools(_chosen_tools(request)),
        "add_generation_prompt": generate,
        "continue_final_message": resume,
        "kwargs": _kwargs(request),
    }


def _chosen_tools(request: ChatRequest | TokenizeRequest) -> list[Tool] | None:
    return None if isinstance(request, ChatRequest) and request.tool_choice == "none" else request.tools


def _kwargs(request: ChatRequest | TokenizeRequest) -> dict[str, Any]:
    kwargs = dict(request.chat_template_kwargs or {})
    if taken := sorted(_RESERVED & kwargs.keys()):
        param = f"chat_template_kwargs.{taken[0]}"
        raise InvalidRequest(f"`{param}` may not be set: the server sets it itself", param, "invalid_value")
    effort = request.reasoning_effort if isinstance(request, ChatRequest) else None
    if effort is not None:
        kwargs["reasoning_effort"] = effort
    return kwargs
