"""`POST /v1/completions`: texts or token ids, one or many."""

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
from headrace.client.validate import check_ids
from headrace.errors import InvalidRequest
from headrace.server.context import Context
from headrace.server.draft_fields import speculation_choice, with_prediction
from headrace.server.exchange import ChunkUsage, Exchange, ExchangeOptions
from headrace.server.generation import ChoiceCollector, GeneratedChoice, GenerationRun
from headrace.server.kv_transfer import GivenStream, hand_over, with_transfer
from headrace.server.logprobs import TextOffsets, prompt_logprobs, text_logprobs
from headrace.server.output_constraint import constraint_of
from headrace.server.replies import TextChoice, TextCompletion, TextLogprobs, UsageReply
from headrace.server.request_body import read_json
from headrace.server.request_ids import new_request_id
from headrace.server.request_params import (
    check_length,
    check_stream_options,
    encode_within,
    kept_tokens,
    output_room,
    sampling_params,
    stop_tokens,
)
from headrace.server.schemas import CompletionRequest
from headrace.server.stream_form import event
from headrace.wording import counted

__all__ = ["answer_completion"]

MAX_PROMPTS = 2048
DEFAULT_MAX_TOKENS = 16
_INLINE = 2000
"""Bytes. The texts of a request up to this size are tokenised in the event loop; those of a longer one in a thread, so
that they don't block the streams."""


async def answer_completion(context: Context, request: Request) -> Response:
    arrival = time.monotonic()
    body, sent = await read_json(request, CompletionRequest, context.client.info.max_model_len)
    context.check_model(body.model)
    _refuse_unsupported(body)
    check_stream_options(body)
    request_id = new_request_id("cmpl")
    work = partial(_jobs, context, context.client.info, body, request_id)
    jobs = work() if len(sent) <= _INLINE else await context.workers.run(len(sent), work)
    options = body.stream_options
    exchange = ExchangeOptions(
        request_id=request_id,
        arrival=arrival,
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
    )
    jobs = with_transfer(context.role, context.client.info, body.kv_transfer_params, jobs)
    run = GenerationRun(context.client, jobs)
    return Exchange(context, run, _TextDialect(context, body, request_id, jobs, run), exchange)


def _jobs(context: Context, info: ModelInfo, body: CompletionRequest, request_id: str) -> list[GenerateRequest]:
    """Tokenise the prompts one after the other: the first one that is refused saves the work for the others. Runs in
    any thread."""
    prompts = _prompts(body.prompt)
    n = body.n or 1
    if len(prompts) * n > MAX_PROMPTS:
        message = f"{counted(len(prompts), 'prompt')} with n {n}: at most {MAX_PROMPTS} choices in one request"
        raise InvalidRequest(message, "prompt", "invalid_value")
    context.check_choices(len(prompts), n)
    for prompt in prompts:
        if isinstance(prompt, str) and body.truncate_prompt_tokens is None:
            check_length(prompt, "prompt", info.max_model_len)
    encode, stops = context.tokenizer.encode, stop_tokens(body, context.tokenizer)
    requests = [
        _request(info, body, _encode(encode, info, body, prompt), f"{request_id}-{i}", stops)
        for i, prompt in enumerate(prompts)
    ]
    return with_prediction(requests, body, context.tokenizer, info)


def _refuse_unsupported(body: CompletionRequest) -> None:
    if body.suffix is not None:
        raise InvalidRequest("`suffix` is not supported: text cannot be inserted", "suffix", "unsupported_value")
    if body.best_of is not None and body.best_of != (body.n or 1):
        message = f"`best_of` {body.best_of} must equal `n` {body.n or 1}: choices are not ranked"
        raise InvalidRequest(message, "best_of", "unsupported_value")


def _prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """The four forms of `prompt` as a list of prompts. Raises InvalidRequest for an empty prompt and for a mixture."""
    if isinstance(prompt, str):
        prompts: list[str | list[int]] = [prompt]
    elif prompt and all(isinstance(item, int) for item in prompt):
        prompts = [prompt]
    elif len({type(item) for item in prompt}) > 1:
        message = "`prompt`: a list holds either texts, token ids or lists of token ids, not a mixture"
        raise InvalidRequest(message, "prompt", "invalid_value")
    else:
        prompts = prompt
    if not prompts or not all(prompts):
        raise InvalidRequest("`prompt` is empty: give at least one character or token", "prompt", "invalid_value")
    return prompts


def _encode(
    encode: Callable[[str, bool], list[int]], info: ModelInfo, body: CompletionRequest, prompt: str | list[int]
) -> tuple[int, ...]:
    keep = body.truncate_prompt_tokens
    if not isinstance(prompt, str):
        return tuple(kept_tokens(list(check_ids(prompt, info.vocab_size, "prompt")), keep, info))
    special = body.add_special_tokens is not False
    ids = encode_within(encode, prompt, special, "prompt", info.max_model_len, keep is not None)
    ids = kept_tokens(ids, keep, info)
    if not ids:
        raise InvalidRequest("`prompt` has no tokens", "prompt", "invalid_value")
    return tuple(ids)


def _request(
    info: ModelInfo, body: CompletionRequest, prompt: tuple[int, ...], request_id: str, stops: tuple[int, ...]
) -> GenerateRequest:
    wanted, size = ("max_tokens", body.max_tokens), ("prompt", len(prompt))
    least = 0 if body.echo else 1
    if body.max_tokens == 0 and not body.echo:
        message = (
            "`max_tokens` is 0, which needs `echo`: set `echo` to get the prompt alone, or ask for a token at least"
        )
        raise InvalidRequest(message, "max_tokens", "invalid_value")
    room = output_room(wanted, DEFAULT_MAX_TOKENS, size, info, least)
    scored = body.prompt_logprobs
    if body.echo and body.logprobs is not None:
        scored = max(body.logprobs, body.prompt_logprobs or 0)
    params = sampling_params(
        body, room, info.sampling_defaults, logprobs=body.logprobs, prompt_logprobs=scored, stop_tokens=stops
    )
    return GenerateRequest(
        id=request_id,
        prompt=prompt,
        params=params,
        priority=body.priority or 0,
        salt=body.cache_salt or "",
        constraint=constraint_of(body),
        echo=bool(body.echo),
        speculation=speculation_choice(body),
    )


class _TextDialect(ChoiceCollector):
    def __init__(
        self,
        context: Context,
        body: CompletionRequest,
        request_id: str,
        jobs: Sequence[GenerateRequest],
        run: GenerationRun,
    ) -> None:
        super().__init__()
        self._info, self._jobs, self._run = context.client.info, jobs, run
        # Tokens of an echoed prompt have the most likely alternatives, generated ones those that are named.
        self._count = None if body.logprobs is None else max(body.logprobs, jobs[0].params.alternatives or 0)
        self._prompt_count = body.prompt_logprobs
        self._ids = bool(body.return_token_ids)
        self._offsets: dict[int, TextOffsets] = {}
        self._started: set[int] = set()
        self._given = GivenStream.of(self._info, jobs[0])
        # One chunk, filled in again for each piece: only the choice changes.
        self._choice = TextChoice(0, "")
        self._chunk = TextCompletion(request_id, "text_completion", int(time.time()), context.model, [self._choice])

    def chunk(self, output: Output, usage: ChunkUsage) -> bytes:
        shown = output.text or output.logprobs or output.finish_reason is not None or (self._ids and output.token_ids)
        starts = (self._ids or self._prompt_count is not None) and output.index not in self._started
        if not (shown or starts):
            return b""
        choice = self._choice
        choice.index, choice.text = output.index, output.text
        choice.finish_reason = output.finish_reason
        choice.stop_reason = UNSET if output.finish_reason is None else output.stop_reason
        if self._count is not None:
            choice.logprobs = self._logprobs(output.index, output.logprobs or ())
        if self._ids:
            choice.token_ids = output.token_ids
        if starts:
            self._add_prompt_fields(choice)
        self._chunk.usage = usage
        if self._given is not None:
            self._chunk.kv_transfer_params = self._given.ending(output)
        data = event(self._chunk)
        choice.prompt_token_ids = choice.prompt_logprobs = UNSET
        return data

    def _add_prompt_fields(self, choice: TextChoice) -> None:
        """Fill in the fields about the prompt, which stand in the first piece of a choice."""
        self._started.add(choice.index)
        if self._ids:
            choice.prompt_token_ids = list(self._jobs[choice.index // self._run.n].prompt)
        entries = self._run.prompt_entries.get(choice.index)
        if self._prompt_count is not None and entries is not None:
            choice.prompt_logprobs = prompt_logprobs(entries, self._prompt_count)

    def usage_chunk(self, usage: UsageReply) -> bytes:
        return event(msgspec.structs.replace(self._chunk, choices=[], usage=usage, kv_transfer_params=UNSET))

    def complete(self, usage: UsageReply) -> bytes:
        choices = self.collected()
        rendered = [self._complete_choice(choice) for choice in choices]
        handed = hand_over(self._info, self._jobs[0], choices[0].token_ids)
        whole = msgspec.structs.replace(self._chunk, choices=rendered, usage=usage, kv_transfer_params=handed)
        return msgspec.json.encode(whole)

    def _complete_choice(self, choice: GeneratedChoice) -> TextChoice:
        logprobs = None if self._count is None else self._logprobs(choice.index, choice.entries)
        rendered = TextChoice(choice.index, choice.text, logprobs, choice.finish_reason, choice.stop_reason)
        if self._ids:
            rendered.token_ids = choice.token_ids
        self._add_prompt_fields(rendered)
        return rendered

    def _logprobs(self, index: int, entries: Sequence[LogprobEntry]) -> TextLogprobs:
        offsets = self._offsets.setdefault(index, TextOffsets())
        return text_logprobs(entries, self._count or 0, offsets)
