"""Generation for one HTTP request: its prompts, their choices, and the token totals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.client.api import EngineClient, GenerateRequest, LogprobEntry, Output, Usage
from headrace.server.http_errors import HttpError
from headrace.server.replies import CompletionDetails, PromptDetails, UsageReply

__all__ = ["ChoiceCollector", "GeneratedChoice", "GenerationRun", "close_stream", "usage_reply"]

_QUEUE = 64


@dataclass(slots=True)
class GeneratedChoice:
    """The output of one choice so far; the complete answer is built from it."""

    index: int
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    entries: list[LogprobEntry] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, output: Output) -> None:
        self.pieces.append(output.text)
        self.token_ids += output.token_ids
        if output.logprobs:
            self.entries += output.logprobs
        if output.finish_reason is not None:
            self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ChoiceCollector:
    """The part of a dialect that collects the choices of an answer that is not streamed."""

    def __init__(self) -> None:
        self._collected: dict[int, GeneratedChoice] = {}

    def take(self, output: Output) -> None:
        choice = self._collected.get(output.index)
        if choice is None:
            choice = self._collected[output.index] = GeneratedChoice(output.index)
        choice.add(output)

    def collected(self) -> list[GeneratedChoice]:
        """In the order of their indices."""
        return [self._collected[index] for index in sorted(self._collected)]


class GenerationRun:
    """Runs the prompts of one request. `outputs` yields pieces whose index counts the choices of all prompts."""

    def __init__(self, client: EngineClient, requests: Sequence[GenerateRequest]) -> None:
        self._client, self._requests = client, requests
        self.n = requests[0].params.n
        self.choices = self.n * len(requests)
        self.prompt_entries: dict[int, list[LogprobEntry]] = {}
        """By choice, from its first piece on; empty unless the request has `prompt_logprobs`."""
        self.first_at: float | None = None
        """When the first output came, in monotonic seconds."""
        self._usages: list[Usage] = [Usage(len(request.prompt), 0, 0) for request in requests]
        self._logprobs = requests[0].params.logprobs is not None
        constraint = requests[0].constraint
        self._field = None if constraint is None else constraint.field
        """Of the constraint, for its errors."""
        self._stream = self._open()

    def salt(self, salted: Callable[[str], str]) -> None:
        """Change the salts of all prompts, before the first output."""
        self._requests = [replace(request, salt=salted(request.salt)) for request in self._requests]
        self._stream = self._open()

    def _open(self) -> AsyncIterator[Output]:
        streams = [self._client.generate(request) for request in self._requests]
        return streams[0] if len(streams) == 1 else _merge(streams, self.n)

    async def outputs(self) -> AsyncIterator[Output]:
        """Raises what the engine raises, and HttpError for a choice that the engine could not finish."""
        try:
            async for output in self._stream:
                if self.first_at is None:
                    self.first_at = time.monotonic()
                if output.finish_reason in ("error", "abort"):
                    raise _failure(output, self._field)
                if output.usage is not None:
                    self._usages[output.index // self.n] = output.usage
                if output.prompt_logprobs is not None:
                    self.prompt_entries[output.index] = output.prompt_logprobs
                if not self._logprobs:
                    # An echoed prompt has logprobs of its own, though the request has no `logprobs`.
                    output.logprobs = None
                yield output
        finally:
            await close_stream(self._stream)

    @property
    def sampling(self) -> dict[str, Any]:
        """The parameters of sampling that a trace shows."""
        params = self._requests[0].params
        return {"max_tokens": params.max_tokens, "temperature": params.temperature, "top_p": params.top_p, "n": self.n}

    @property
    def usage(self) -> Usage:
        """Totals so far, each prompt counted once."""
        if len(self._usages) == 1:
            return self._usages[0]
        return Usage(
            sum(usage.prompt_tokens for usage in self._usages),
            sum(usage.completion_tokens for usage in self._usages),
            sum(usage.cached_tokens for usage in self._usages),
            sum(usage.accepted_drafts for usage in self._usages),
            sum(usage.rejected_drafts for usage in self._usages),
        )


def _failure(output: Output, field: str | None) -> HttpError:
    if output.finish_reason == "abort":
        return HttpError(
            503, "the request was aborted", kind="server_error", code="aborted", headers={"retry-after": "5"}
        )
    message = output.error or "the engine could not finish the request"
    if output.request_fault:
        return HttpError(400, message, param=field, code="nothing_to_sample")
    return HttpError(500, message, kind="server_error", code="engine_error")


def usage_reply(usage: Usage) -> UsageReply:
    total = usage.prompt_tokens + usage.completion_tokens
    return UsageReply(
        usage.prompt_tokens,
        usage.completion_tokens,
        total,
        PromptDetails(usage.cached_tokens),
        CompletionDetails(usage.accepted_drafts, usage.rejected_drafts),
    )


async def close_stream(stream: AsyncIterator[Output]) -> None:
    """Close a generator, which aborts the requests that still run. A plain iterator has nothing to close."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


async def _merge(streams: Sequence[AsyncIterator[Output]], n: int) -> AsyncIterator[Output]:
    """Merge the outputs of several prompts in order of arrival. The first error ends them all."""
    queue: asyncio.Queue[Output | Exception | None] = asyncio.Queue(_QUEUE)

    async def pump(first: int, stream: AsyncIterator[Output]) -> None:
        try:
            async for output in stream:
                output.index += first
                await queue.put(output)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)
        finally:
            await close_stream(stream)

    tasks = [asyncio.create_task(pump(i * n, stream)) for i, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
