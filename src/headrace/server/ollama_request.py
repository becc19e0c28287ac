"""Translates bodies of Ollama's API into the internal form of a conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import InvalidRequest
from headrace.server.ollama_schemas import OllamaChatRequest, OllamaGenerateRequest, OllamaMessage, OllamaRequest

__all__ = ["chat_fields", "generate_fields", "plain_name"]

_DEFAULTS: Mapping[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
"""Ollama's own, for requests that leave them out."""
_SAME = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "stop")
_OFF: Mapping[str, Sequence[Any]] = {
    "mirostat": (0,),
    "tfs_z": (1,),
    "typical_p": (1,),
}
"""Options that change the choice of tokens in a way that is not built here, with the values that turn them off."""
_INERT = frozenset(
    "f16_kv low_vram logits_all main_gpu mirostat_eta mirostat_tau num_batch num_gpu num_gqa num_keep num_thread numa "
    "penalize_newline use_mlock use_mmap vocab_only".split()
)
_LEVELS = ("low", "medium", "high", "max")


def plain_name(name: str, served: str) -> str:
    """The name without `:latest`, unless the served model is called so."""
    return name if name == served else name.removesuffix(":latest")


def chat_fields(body: OllamaChatRequest, context: int) -> tuple[dict[str, Any], list[str]]:
    """(The fields of chat completions, the names of what is ignored). `context`: the model's. Raises InvalidRequest."""
    fields, ignored = _common(body, context)
    fields["messages"] = _messages(body.messages or [])
    fields["tools"] = body.tools or None
    return fields, ignored


def generate_fields(body: OllamaGenerateRequest, context: int) -> tuple[dict[str, Any], list[str]]:
    """As `chat_fields`, for a prompt and the system's text."""
    refused = {
        "suffix": (body.suffix, "text cannot be inserted"),
        "template": (body.template, "templates come from the checkpoint"),
        "context": (body.context, "send the conversation to /api/chat"),
    }
    for name, (value, why) in refused.items():
        if value:
            raise InvalidRequest(f"`{name}` is not supported: {why}", name, "unsupported_value")
    fields, ignored = _common(body, context)
    asked = OllamaMessage(role="user", content=body.prompt or "", images=body.images)
    told = [OllamaMessage(role="system", content=body.system)] if body.system else []
    fields["messages"] = _messages([*told, asked])
    if body.raw:
        fields["add_special_tokens"] = True
    return fields, ignored


def _common(body: OllamaRequest, context: int) -> tuple[dict[str, Any], list[str]]:
    ignored: list[str] = []
    fields = _options(body.options or {}, context, ignored)
    if body.think is not None:
        thinks = body.think not in (False, "none", "false")
        fields["chat_template_kwargs"] = {"enable_thinking": thinks, "thinking": thinks}
        if isinstance(body.think, str):
            if body.think not in _LEVELS:
                message = f"`think` must be true, false, {', '.join(_LEVELS[:-1])} or {_LEVELS[-1]}"
                raise InvalidRequest(message, "think", "invalid_value")
            fields["reasoning_effort"] = body.think
    if body.format == "json":
        fields["response_format"] = {"type": "json_object"}
    elif isinstance(body.format, dict):
        fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": body.format}}
    elif body.format:
        message = f'`format` must be "json" or a JSON schema, not {body.format!r:.60}'
        raise InvalidRequest(message, "format", "invalid_value")
    if body.logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    return fields, ignored


def _options(options: Mapping[str, Any], context: int, ignored: list[str]) -> dict[str, Any]:
    fields = dict(_DEFAULTS)
    for name, value in options.items():
        if value is None or name in _INERT:
            continue
        if name in _SAME:
            fields[name] = value
        elif name in _OFF:
            if value not in _OFF[name]:
                message = f"`options.{name}` is not supported: leave it out, or turn it off with {_OFF[name][0]}"
                raise InvalidRequest(message, f"options.{name}", "unsupported_value")
        elif name not in ("num_predict", "num_ctx", "seed", "repeat_penalty", "repeat_last_n"):
            ignored.append(f"options.{name}")
    _add_numbers(options, context, fields, ignored)
    return fields


def _add_numbers(options: Mapping[str, Any], context: int, fields: dict[str, Any], ignored: list[str]) -> None:
    """The options whose numbers mean something else here."""
    predict, seed = _whole(options, "num_predict"), _whole(options, "seed")
    if predict is not None and predict not in (-1, -2):
        fields["max_tokens"] = predict
    if seed is not None and seed >= 0:
        fields["seed"] = seed
    if (_whole(options, "num_ctx") or 0) > context:
        ignored.append("options.num_ctx")
    last = _whole(options, "repeat_last_n")
    if options.get("repeat_penalty") is not None and last != 0:
        fields["repetition_penalty"] = options["repeat_penalty"]
    if last not in (None, 0, -1):
        ignored.append("options.repeat_last_n")


def _whole(options: Mapping[str, Any], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        raise InvalidRequest(f"`options.{name}` must be a whole number", f"options.{name}", "invalid_value")
    return int(value)


def _messages(messages: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """Ollama's calls have no ids, and some templates need them: they are counted, and results follow by name."""
    found: list[dict[str, Any]] = []
    unanswered: list[tuple[str, str]] = []
    calls = 0
    for message in messages:
        plain: dict[str, Any] = {"role": message.role, "content": _content(message)}
        if message.thinking is not None:
            plain["reasoning_content"] = message.thinking
        if message.tool_calls:
            plain["tool_calls"] = []
            for call in message.tool_calls:
                call_id = f"call{calls:05d}"
                calls += 1
                unanswered.append((call.function.name, call_id))
                arguments = json.dumps(call.function.arguments or {}, ensure_ascii=False)
                function = {"name": call.function.name, "arguments": arguments}
                plain["tool_calls"].append({"id": call_id, "type": "function", "function": function})
        if message.role == "tool":
            _answer(plain, message.tool_name, unanswered)
        found.append(plain)
    return found


def _answer(plain: dict[str, Any], name: str | None, unanswered: list[tuple[str, str]]) -> None:
    """Give a tool's result the id of the first call of that name without one, or of the first call."""
    if name is not None:
        plain["name"] = name
    taken = next((call for call in unanswered if call[0] == name), unanswered[0] if unanswered else None)
    if taken is not None:
        unanswered.remove(taken)
        plain["tool_call_id"] = taken[1]


def _content(message: OllamaMessage) -> str | list[dict[str, Any]]:
    text = message.content or ""
    if not message.images:
        return text
    images = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}} for image in message.images]
    return [*([{"type": "text", "text": text}] if text else []), *images]
