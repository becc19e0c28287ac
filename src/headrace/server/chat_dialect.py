"""Chat answers in OpenAI's form: the body of a complete answer, and the events of a stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from headrace.client.api import GenerateRequest, LogprobEntry, Output
from headrace.server.context import Context
from headrace.server.exchange import ChunkUsage
from headrace.server.generation import ChoiceCollector, GeneratedChoice, GenerationRun
from headrace.server.kv_transfer import GivenStream, hand_over
from headrace.server.logprobs import chat_logprobs, prompt_logprobs
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
from headrace.server.schemas import ChatRequest
from headrace.server.stream_form import event

__all__ = ["ChatDialect"]


class ChatDialect(ChoiceCollector):
    def __init__(self, context: Context, body: ChatRequest, job: GenerateRequest, run: GenerationRun) -> None:
        super().__init__()
        self._info, self._model, self._job, self._run = context.client.info, context.model, job, run
        self._created = int(time.time())
        self._count = job.params.alternatives
        self._ids = bool(body.return_token_ids)
        # One chunk, filled in again for each piece: only the delta changes.
        self._delta = ChatDelta()
        self._choice = ChatChunkChoice(0, self._delta)
        self._chunk = ChatChunk(job.id, "chat.completion.chunk", self._created, context.model, [self._choice])
        self._roles: set[int] = set()
        self._given = GivenStream.of(self._info, job)

    def chunk(self, output: Output, usage: ChunkUsage) -> bytes:
        self._chunk.usage = usage
        self._choice.index = output.index
        events = b""
        if output.index not in self._roles:
            self._roles.add(output.index)
            events = self._role(output.index)
        if self._has_content(output):
            events += self._content(output)
        handed = UNSET if self._given is None else self._given.ending(output)
        if output.finish_reason is not None:
            events += self._finish(output, handed)
        return events

    def _has_content(self, output: Output) -> bool:
        return bool(output.text or output.logprobs or (self._ids and output.token_ids))

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

    def _finish(self, output: Output, handed: dict[str, Any] | UnsetType) -> bytes:
        last = ChatChunkChoice(output.index, ChatDelta(), None, self._finish_reason(output), output.stop_reason)
        return event(msgspec.structs.replace(self._chunk, choices=[last], kv_transfer_params=handed))

    def _finish_reason(self, output: Output) -> str | None:
        return output.finish_reason

    def usage_chunk(self, usage: UsageReply) -> bytes:
        return event(msgspec.structs.replace(self._chunk, choices=[], usage=usage))

    def complete(self, usage: UsageReply) -> bytes:
        choices = self.collected()
        rendered = [
            ChatChoice(
                choice.index,
                self._message(choice),
                self._logprobs(choice.entries),
                self._whole_reason(choice),
                choice.stop_reason,
                choice.token_ids if self._ids else UNSET,
            )
            for choice in choices
        ]
        completion = ChatCompletion(self._job.id, "chat.completion", self._created, self._model, rendered, usage)
        completion.kv_transfer_params = hand_over(self._info, self._job, choices[0].token_ids)
        if self._ids:
            completion.prompt_token_ids = list(self._job.prompt)
        if self._run.prompt_entries:
            completion.prompt_logprobs = self._prompt_logprobs(self._run.prompt_entries[0])
        return msgspec.json.encode(completion)

    def _message(self, choice: GeneratedChoice) -> ChatMessage:
        return ChatMessage("assistant", choice.text)

    def _whole_reason(self, choice: GeneratedChoice) -> str | None:
        return choice.finish_reason

    def _logprobs(self, entries: Sequence[LogprobEntry]) -> ChatLogprobs | None:
        return None if self._count is None else chat_logprobs(entries, self._count)

    def _prompt_logprobs(self, entries: Sequence[LogprobEntry]) -> list[dict[str, Any] | None]:
        return prompt_logprobs(entries, self._job.params.prompt_logprobs or 0)
