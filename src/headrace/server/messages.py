"""From a chat request to the arguments of the chat template, with OpenAI's peculiarities settled."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import InvalidRequest
from headrace.server.schemas import ChatRequest, Message, TokenizeRequest, Tool
from headrace.tokenization.reserved import RESERVED_TEMPLATE_ARGUMENTS

__all__ = ["template_arguments", "template_messages", "template_tools"]


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """What is OpenAI's alone is settled here; content and tool calls are made uniform by the tokenizer. Raises InvalidRequest
    with the path of the message that is at fault."""
    if not messages:
        raise InvalidRequest("`messages` is empty: give at least one message", "messages", "invalid_value")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Message, path: str) -> dict[str, Any]:
    for field in ("audio", "function_call"):
        if getattr(message, field) is not None:
            raise InvalidRequest(f"`{path}.{field}` is not supported", f"{path}.{field}", "unsupported_value")
    # Clients that send back what they were streamed leave the deltas' index in.
    calls = [msgspec.structs.replace(call, index=None) for call in message.tool_calls or ()] or None
    if calls and message.role != "assistant":
        raise _wrong(f"{path}.tool_calls", f"only an assistant's message calls tools, not a {message.role}'s")
    if message.content is None and not calls and message.refusal is None:
        raise _wrong(f"{path}.content", f"a message of the role {message.role} needs content")
    plain: dict[str, Any] = msgspec.to_builtins(
        msgspec.structs.replace(
            message,
            role="system" if message.role == "developer" else message.role,
            content=message.refusal if message.content is None else message.content,
            tool_calls=calls,
            reasoning_content=message.reasoning_content or message.reasoning,
            reasoning=None,
            refusal=None,
            annotations=None,
        )
    )
    return plain


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
    if taken := sorted(RESERVED_TEMPLATE_ARGUMENTS & kwargs.keys()):
        param = f"chat_template_kwargs.{taken[0]}"
        raise InvalidRequest(f"`{param}` may not be set: the server sets it itself", param, "invalid_value")
    effort = request.reasoning_effort if isinstance(request, ChatRequest) else None
    if effort is not None:
        kwargs["reasoning_effort"] = effort
    return kwargs
