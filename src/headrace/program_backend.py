"""Runs programs of `headrace.lang` on an engine in this process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from headrace.client.api import EngineClient, GenerateRequest, Output
from headrace.client.batch import SequenceLimiter
from headrace.client.stops import special_stops
from headrace.errors import EngineDead, InvalidRequest
from headrace.lang.backend import Generated, Scores, TokenCounts
from headrace.lang.conversation import Conversation
from headrace.structured_outputs import StructuredOutputs
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.tokenizer import Tokenizer
from headrace.types import SamplingParams

__all__ = ["EngineBackend"]


class EngineBackend:
    """A `lang.backend.Backend`. Thread: the client's event loop."""

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, places: SequenceLimiter) -> None:
        self._client, self._tokenizer, self._places = client, tokenizer, places
        self._numbers = itertools.count()

    async def generate(
        self,
        conversation: Conversation,
        sampling: Mapping[str, Any],
        constraint: Mapping[str, Any] | None,
        on_text: Callable[[str], None] | None,
    ) -> Generated:
        form = None if constraint is None else StructuredOutputs.of(constraint)
        params = self._with_special_stops(SamplingParams(**sampling, structured_outputs=form))
        made = Generated("", None)
        for output in await self._outputs(await self._prompt(conversation), params, on_text):
            made.text += output.text
            made.finish_reason = output.finish_reason or made.finish_reason
            made.usage = _counts(output) if output.usage is not None else made.usage
            if output.logprobs is not None:
                made.logprobs = [*(made.logprobs or []), *output.logprobs]
        return made

    async def score(self, conversation: Conversation, choices: Sequence[str], alone: bool) -> Scores:
        prefix = await self._prompt(conversation)
        ids = [self._tokenizer.encode(choice, add_special_tokens=False) for choice in choices]
        usage = TokenCounts()
        scored = [self._logprobs([*prefix, *one], len(prefix), usage) for one in ids]
        scored += [self._logprobs(one, 0, usage) for one in ids if alone]
        rows = await asyncio.gather(*scored)
        return Scores(rows[: len(ids)], rows[len(ids) :], usage)

    async def _prompt(self, conversation: Conversation) -> list[int]:
        """The prompt as the model sees it."""
        if not conversation.is_chat:
            return self._tokenizer.encode(conversation.text) if conversation.text else []
        going_on = bool(conversation.text)
        inputs = ChatInputs(conversation.as_messages(), None, not going_on, going_on)
        return self._tokenizer.encode_chat(await self._tokenizer.apply_chat_template_async(inputs))

    async def _logprobs(self, ids: list[int], start: int, usage: TokenCounts) -> list[float]:
        """The log-probability of each token from `start` on, behind those before it; 0 for the first of all."""
        params = SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=start)
        found: list[float] = []
        for output in await self._outputs(ids, params, None):
            found += [entry.logprob or 0.0 for entry in (output.prompt_logprobs or ())[start:]]
            if output.finish_reason is not None:
                usage.add(_counts(output))
        return found

    async def _outputs(
        self, ids: Sequence[int], params: SamplingParams, on_text: Callable[[str], None] | None
    ) -> list[Output]:
        """All pieces of an answer. Cancelling aborts the request."""
        request = GenerateRequest(f"program-{id(self)}-{next(self._numbers)}", tuple(ids), params)
        found: list[Output] = []
        taken = await self._places.acquire(1)
        try:
            async with aclosing(self._client.generate(request)) as outputs:  # type: ignore[type-var]
                async for output in outputs:
                    if output.request_fault:
                        raise InvalidRequest(output.error or "the request contradicts itself")
                    if output.finish_reason in ("error", "abort"):
                        raise EngineDead(output.error or "the engine was closed")
                    found.append(output)
                    if on_text is not None and output.text:
                        on_text(output.text)
        finally:
            self._places.release(taken)
        return found

    def _with_special_stops(self, params: SamplingParams) -> SamplingParams:
        """As `LLM.generate`: a special token whose text is a stop string stops, too."""
        if not params.stop or not params.skip_special_tokens:
            return params
        found = special_stops(params.stop, self._tokenizer)
        return replace(params, stop_token_ids=params.stop_token_ids + found) if found else params


def _counts(output: Output) -> TokenCounts:
    found = output.usage
    return TokenCounts(
        *((0, 0, 0) if found is None else (found.prompt_tokens, found.completion_tokens, found.cached_tokens)), 1
    )
