"""Converts a chat request into the inputs of the chat template, and handles what is specific to OpenAI's API."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import InvalidRequest
from headrace.server.schemas import ChatRequest, Message, TokenizeRequest
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.reserved import RESERVED_TEMPLATE_ARGUMENTS

__all__ = ["chat_inputs"]

_NOT_FOR_TEMPLATES = frozenset(
    "annotations audio function_call id images parsed phase provider_specific_fields refusal thinking_blocks".split()
)


class _Sent(msgspec.Struct):
    """The part of a body that templates read, with its keys in the order in which they were sent."""

    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None


_decode_sent = msgspec.json.Decoder(_Sent).decode


def chat_inputs(body: ChatRequest | TokenizeRequest, sent: bytes) -> ChatInputs:
    """The inputs of the chat template. `sent` is the body that was decoded.

    Handles what is specific to OpenAI's API; the tokenizer handles the rest, which depends on the template. Raises
    InvalidRequest with the path of the wrong field.
    """
    plain = _decode_sent(sent)
    messages = body.messages or []
    if not messages:
        raise InvalidRequest("`messages` is empty: give at least one message", "messages", "invalid_value")
    for i, message in enumerate(messages):
        _check(message, f"messages[{i}]")
    resume = _continues(body)
    unused = isinstance(body, ChatRequest) and body.tool_choice == "none"
    return ChatInputs(
        [_message(message) for message in plain.messages or ()],
        tools=None if unused else plain.tools or None,
        documents=plain.documents if isinstance(body, ChatRequest) else None,
        add_generation_prompt=not resume if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=resume,
        kwargs=_kwargs(body),
    )


def _check(message: Message, path: str) -> None:
    for field in ("audio", "function_call"):
        if getattr(message, field) is not None:
            raise InvalidRequest(f"`{path}.{field}` is not supported", f"{path}.{field}", "unsupported_value")
    if message.tool_calls and message.role != "assistant":
        raise _wrong(f"{path}.tool_calls", f"only an assistant's message calls tools, not a {message.role}'s")
    reasoned = message.reasoning or message.reasoning_content
    if message.content is None and not message.tool_calls and message.refusal is None and not reasoned:
        raise _wrong(f"{path}.content", f"a message of the role {message.role} needs content")


def _message(message: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in message.items() if value is not None and key not in _NOT_FOR_TEMPLATES}
    if "content" not in plain and message.get("refusal") is not None:
        plain["content"] = message["refusal"]
    if "tool_calls" in plain:
        plain["tool_calls"] = [_call(call) for call in plain["tool_calls"]]
    if isinstance(plain.get("content"), list):
        plain["content"] = [_part(part) for part in plain["content"]]
    return plain


def _part(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "cache_control"}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Without what clients add to the calls that they send back: the deltas' index, and the parsed arguments."""
    plain = {key: value for key, value in call.items() if key != "index"}
    plain["function"] = {key: value for key, value in plain["function"].items() if key != "parsed_arguments"}
    return plain


def _wrong(param: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}`: {why}", param, "invalid_value")


def _continues(body: ChatRequest | TokenizeRequest) -> bool:
    """Whether the answer continues the last message."""
    resume = bool(body.continue_final_message)
    if resume and body.add_generation_prompt:
        message = "`continue_final_message` and `add_generation_prompt` exclude each other"
        raise InvalidRequest(message, "continue_final_message", "invalid_value")
    messages = body.messages or []
    if resume and messages and messages[-1].role != "assistant":
        message = f"`continue_final_message` continues an assistant's message, but the last is a {messages[-1].role}'s"
        raise InvalidRequest(message, "continue_final_message", "invalid_value")
    return resume


def _kwargs(request: ChatRequest | TokenizeRequest) -> dict[str, Any]:
    kwargs = dict(request.chat_template_kwargs or {})
    if taken := sorted(RESERVED_TEMPLATE_ARGUMENTS & kwargs.keys()):
        param = f"chat_template_kwargs.{taken[0]}"
        raise InvalidRequest(f"`{param}` may not be set: the server sets it itself", param, "invalid_value")
    effort = request.reasoning_effort if isinstance(request, ChatRequest) else None
    if effort is not None:
        kwargs["reasoning_effort"] = effort
        # Templates look at either name.
        for name in ("enable_thinking", "thinking"):
            kwargs.setdefault(name, effort != "none")
    return kwargs
