"""Chat answers whose text is read for tool calls and reasoning."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.client.api import GenerateRequest, Output
from headrace.server.answer_reader import AnswerReader
from headrace.server.chat_dialect import ChatDialect
from headrace.server.context import Context
from headrace.server.exchange import ChunkUsage
from headrace.server.generation import GeneratedChoice, GenerationRun
from headrace.server.logprobs import chat_logprobs
from headrace.server.replies import ChatChunkChoice, ChatDelta, ChatMessage, ChatToolCall, UsageReply
from headrace.server.schemas import ChatRequest
from headrace.server.stream_form import event

__all__ = ["ParsedChatDialect"]


class ParsedChatDialect(ChatDialect):
    """A stream's pieces and a complete answer go through the same readers, one per choice."""

    def __init__(
        self,
        context: Context,
        body: ChatRequest,
        job: GenerateRequest,
        run: GenerationRun,
        new_reader: Callable[[], AnswerReader],
        counts_reasoning: bool,
    ) -> None:
        super().__init__(context, body, job, run)
        self._new_reader = new_reader
        self._counts = counts_reasoning
        self._readers: dict[int, AnswerReader] = {}

    def _reader(self, index: int) -> AnswerReader:
        found = self._readers.get(index)
        if found is None:
            found = self._readers[index] = self._new_reader()
        return found

    def _content(self, output: Output) -> bytes:
        """The events of one piece. Its logprobs and token ids are in the first one."""
        reader = self._reader(output.index)
        deltas = reader.read(output.text, output.token_ids, self._end(output.finish_reason), output.stop_reason)
        if not deltas and (output.logprobs or (self._ids and output.token_ids)):
            deltas = [ChatDelta()]
        events = b""
        for at, delta in enumerate(deltas):
            choice = ChatChunkChoice(output.index, delta)
            if at == 0 and self._count is not None:
                choice.logprobs = chat_logprobs(output.logprobs or (), self._count)
            if at == 0 and self._ids:
                choice.token_ids = output.token_ids
            events += event(msgspec.structs.replace(self._chunk, choices=[choice]))
        return events

    def _end(self, finish: str | None) -> str | None:
        """None where another engine goes on: what may be the start of a marker is not shown as text."""
        return None if self._job.gives_blocks and finish == "length" else finish

    def _has_content(self, output: Output) -> bool:
        return bool(output.token_ids) or super()._has_content(output) or output.finish_reason is not None

    def _finish_reason(self, output: Output) -> str | None:
        return self._reader(output.index).finish_reason(output.finish_reason)

    def chunk(self, output: Output, usage: ChunkUsage) -> bytes:
        return super().chunk(output, self._with_details(usage) if isinstance(usage, UsageReply) else usage)

    def usage_chunk(self, usage: UsageReply) -> bytes:
        return super().usage_chunk(self._with_details(usage))

    def complete(self, usage: UsageReply) -> bytes:
        self._messages = {choice.index: self._read(choice) for choice in self.collected()}
        return super().complete(self._with_details(usage))

    def _message(self, choice: GeneratedChoice) -> ChatMessage:
        return self._messages[choice.index]

    def _whole_reason(self, choice: GeneratedChoice) -> str | None:
        return self._reader(choice.index).finish_reason(choice.finish_reason)

    def _read(self, choice: GeneratedChoice) -> ChatMessage:
        reader = self._reader(choice.index)
        deltas = reader.read(choice.text, choice.token_ids, self._end(choice.finish_reason), choice.stop_reason)
        content = "".join(delta.content for delta in deltas if isinstance(delta.content, str))
        thoughts = [delta.reasoning for delta in deltas if isinstance(delta.reasoning, str)]
        calls: list[ChatToolCall] = []
        for delta in deltas:
            for call in delta.tool_calls if isinstance(delta.tool_calls, list) else ():
                if isinstance(call.id, str) and isinstance(call.function.name, str):
                    calls.append(ChatToolCall(call.id, "function", call.function))
                else:
                    calls[-1].function.arguments += call.function.arguments
        message = ChatMessage("assistant", content or (None if calls or thoughts else ""))
        if thoughts:
            message.reasoning_content = message.reasoning = "".join(thoughts)
        if calls:
            message.tool_calls = calls
        return message

    def _with_details(self, usage: UsageReply) -> UsageReply:
        if not self._counts:
            return usage
        tokens = sum(reader.reasoning_tokens for reader in self._readers.values())
        details = msgspec.structs.replace(usage.completion_tokens_details, reasoning_tokens=tokens)
        return msgspec.structs.replace(usage, completion_tokens_details=details)
