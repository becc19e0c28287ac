"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from headrace.client.api import GenerateRequest, LogprobEntry, ModelInfo, Output
from headrace.errors import InvalidRequest
from headrace.server.context import Context
from headrace.server.exchange import ChunkUsage, Exchange, ExchangeOptions, event
from headrace.server.generation import GeneratedChoice, GenerationRun
from headrace.server.logprobs import chat_logprobs, prompt_logprobs
from headrace.server.output_constraint import constraint_of
from headrace.server.replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    UsageReply,
)
from headrace.server.request_body import read_json
from headrace.server.request_ids import new_request_id
from headrace.server.request_params import (
    check_size,
    check_stream_options,
    encode_within,
    output_room,
    sampling_params,
    stop_tokens,
)
from headrace.server.schemas import ChatRequest, Message, TokenizeRequest
from headrace.server.template_call import template_call

__all__ = ["answer_chat", "render_chat"]

_SMALL = 1 << 16
"""Bytes of a body whose messages are looked through in the event loop."""


async def answer_chat(context: Context, request: Request) -> Response:
    arrival = time.monotonic()
    body, sent = await read_json(request, ChatRequest)
    context.check_model(body.model)
    _refuse_unenforced(body)
    check_stream_options(body)
    info = context.client.info
    context.check_choices(1, body.n or 1)
    check = partial(check_size, param="messages", limit=info.max_model_len)
    text = await render_chat(context, body, sent, check)
    job = await context.workers.run(len(sent), partial(_job, context, info, body, text))
    options = body.stream_options
    exchange = ExchangeOptions(
        request_id=job.id,
        arrival=arrival,
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
    )
    run = GenerationRun(context.client, [job])
    return Exchange(context, run, _ChatDialect(context.model, body, job, run), exchange)


def _refuse_unenforced(body: ChatRequest) -> None:
    """What would have to be guaranteed and cannot be yet is refused, never ignored."""
    if body.tool_choice not in (None, "auto", "none"):
        message = "`tool_choice` can be auto or none: a call cannot be forced yet"
        raise InvalidRequest(message, "tool_choice", "unsupported_value")
    if body.chat_template is not None:
        message = "`chat_template` is refused: templates come from the checkpoint or the server's own options"
        raise InvalidRequest(message, "chat_template", "unsupported_value")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("`top_logprobs` needs `logprobs: true`", "top_logprobs", "invalid_value")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        message = "`max_tokens` and `max_completion_tokens` differ: give one of them"
        raise InvalidRequest(message, "max_tokens", "invalid_value")


def _job(context: Context, info: ModelInfo, body: ChatRequest, text: str) -> GenerateRequest:
    """In any thread. Raises ContextOverflow where it is plain that the text does not fit."""
    special = bool(body.add_special_tokens)
    prompt = encode_within(context.tokenizer.encode, text, special, "messages", info.max_model_len)
    return _request(info, body, prompt, stop_tokens(body, context.tokenizer))


async def render_chat(
    context: Context, body: ChatRequest | TokenizeRequest, sent: bytes, check: Callable[[int], None]
) -> str:
    """The conversation as the model reads it. `sent` is the body that was decoded. `check` is given the number of
    characters: of the messages before the template sees them, and of the text."""
    prepare = partial(_prepare, body, sent, check)
    messages, arguments = prepare() if len(sent) < _SMALL else await context.workers.run(len(sent), prepare)
    text = await context.tokenizer.apply_chat_template_async(messages, **arguments)
    check(len(text))
    return text


def _prepare(
    body: ChatRequest | TokenizeRequest, sent: bytes, check: Callable[[int], None]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    check(sum(map(_text_length, body.messages or ())))
    return template_call(body, sent)


def _text_length(message: Message) -> int:
    """Characters that a template shows; what a model thought earlier, some leave out."""
    content = message.content or ""
    return len(content) if isinstance(content, str) else sum(len(part.text or "") for part in content)


def _request(info: ModelInfo, body: ChatRequest, prompt: list[int], stops: tuple[int, ...]) -> GenerateRequest:
    if not prompt:
        raise InvalidRequest("`messages` render to an empty prompt", "messages", "invalid_value")
    wanted = ("max_tokens", body.max_tokens)
    if body.max_completion_tokens is not None:
        wanted = ("max_completion_tokens", body.max_completion_tokens)
    room = output_room(wanted, None, ("messages", len(prompt)), info)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    scored = body.prompt_logprobs
    params = sampling_params(body, room, logprobs=logprobs, prompt_logprobs=scored, stop_tokens=stops)
    return GenerateRequest(
        id=new_request_id("chatcmpl"),
        prompt=tuple(prompt),
        params=params,
        priority=body.priority or 0,
        salt=body.cache_salt or "",
        constraint=constraint_of(body),
    )


class _ChatDialect:
    def __init__(self, model: str, body: ChatRequest, job: GenerateRequest, run: GenerationRun) -> None:
        self._model, self._job, self._run = model, job, run
        self._created = int(time.time())
        self._count = job.params.logprobs
        self._ids = bool(body.return_token_ids)
        # One chunk, filled in anew for each piece: only the delta changes.
        self._delta = ChatDelta()
        self._choice = ChatChunkChoice(0, self._delta)
        self._chunk = ChatChunk(job.id, "chat.completion.chunk", self._created, model, [self._choice])
        self._roles: set[int] = set()

    def chunk(self, output: Output, usage: ChunkUsage) -> bytes:
        self._chunk.usage = usage
        self._choice.index = output.index
        events = b""
        if output.index not in self._roles:
            self._roles.add(output.index)
            events = self._role(output.index)
        if output.text or output.logprobs or (self._ids and output.token_ids):
            events += self._content(output)
        if output.finish_reason is not None:
            events += self._finish(output)
        return events

    def _role(self, index: int) -> bytes:
        first = ChatChunkChoice(index, ChatDelta("assistant", ""))
        chunk = ChatChunk(self._job.id, "chat.completion.chunk", self._created, self._model, [first], self._chunk.usage)
        if self._ids:
            chunk.prompt_token_ids = list(self._job.prompt)
        if index in self._run.prompt_entries and len(self._roles) == 1:
            chunk.prompt_logprobs = self._prompt_logprobs(self._run.prompt_entries[index])
        return event(chunk)

    def _content(self, output: Output) -> bytes:
        self._delta.content = output.text
        if self._count is not None:
            self._choice.logprobs = chat_logprobs(output.logprobs or (), self._count)
        if self._ids:
            self._choice.token_ids = output.token_ids
        return event(self._chunk)

    def _finish(self, output: Output) -> bytes:
        last = ChatChunkChoice(output.index, ChatDelta(), None, output.finish_reason, output.stop_reason)
        return event(msgspec.structs.replace(self._chunk, choices=[last]))

    def usage_chunk(self, usage: UsageReply) -> bytes:
        return event(msgspec.structs.replace(self._chunk, choices=[], usage=usage))

    def whole(self, choices: Sequence[GeneratedChoice], usage: UsageReply) -> bytes:
        rendered = [
            ChatChoice(
                choice.index,
                ChatMessage("assistant", choice.text),
                self._logprobs(choice.entries),
                choice.finish_reason,
                choice.stop_reason,
                choice.token_ids if self._ids else UNSET,
            )
            for choice in choices
        ]
        whole = ChatCompletion(self._job.id, "chat.completion", self._created, self._model, rendered, usage)
        if self._ids:
            whole.prompt_token_ids = list(self._job.prompt)
        if self._run.prompt_entries:
            whole.prompt_logprobs = self._prompt_logprobs(self._run.prompt_entries[0])
        return msgspec.json.encode(whole)

    def _logprobs(self, entries: Sequence[LogprobEntry]) -> ChatLogprobs | None:
        return None if self._count is None else chat_logprobs(entries, self._count)

    def _prompt_logprobs(self, entries: Sequence[LogprobEntry]) -> list[dict[str, Any] | None]:
        return prompt_logprobs(entries, self._job.params.prompt_logprobs or 0)
