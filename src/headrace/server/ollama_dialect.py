"""Answers in the form of Ollama's API: complete, and as lines of JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import msgspec

from headrace.client.api import LogprobEntry, Output
from headrace.server.answer_blocks import AnswerBlocks, Block, BlockEvent
from headrace.server.exchange import ChunkUsage
from headrace.server.generation import GenerationRun
from headrace.server.logprobs import chat_logprobs
from headrace.server.ollama_schemas import CallOut, FunctionOut, OllamaLine, SpokenLine
from headrace.server.replies import UsageReply

__all__ = ["OllamaDialect", "OllamaForm", "now"]

_encode = msgspec.json.Encoder().encode


def now() -> str:
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class OllamaForm:
    """The request's part of an answer."""

    model: str
    """As the client wrote it."""
    generates: bool
    """The answer of /api/generate, not of /api/chat."""
    arrival: float
    """Monotonic seconds."""

    def line(self, text: str, thinking: str | None = None, calls: list[CallOut] | None = None) -> OllamaLine:
        line = OllamaLine(model=self.model, created_at=now(), done=False)
        if self.generates:
            line.response, line.thinking = text, thinking
        else:
            line.message = SpokenLine("assistant", text, thinking, calls)
        return line

    def empty(self, reason: str) -> OllamaLine:
        """The answer to a request without a prompt."""
        line = self.line("")
        line.done, line.done_reason = True, reason
        return line


class OllamaDialect:
    def __init__(self, form: OllamaForm, run: GenerationRun, blocks: AnswerBlocks, logprobs: int | None) -> None:
        """`logprobs`: how many alternatives are told; None: no logprobs."""
        self._form, self._run, self._blocks, self._logprobs = form, run, blocks, logprobs
        self._entries: list[LogprobEntry] = []

    def chunk(self, output: Output, usage: ChunkUsage) -> bytes:
        lines = [line for event in self._blocks.take(output) if (line := self._line(event)) is not None]
        if self._logprobs is not None and output.logprobs:
            lines = lines or [self._form.line("")]
            self._add_logprobs(lines[0], output.logprobs)
        return b"".join(_encode(line) + b"\n" for line in lines)

    def _line(self, event: BlockEvent) -> OllamaLine | None:
        """Calls come whole, when they end."""
        kind = event.block.kind
        if event.what == "piece" and kind == "text":
            return self._form.line(event.text)
        if event.what == "piece" and kind == "reasoning":
            return self._form.line("", event.text)
        return self._form.line("", calls=[_call(event.block)]) if (event.what, kind) == ("close", "call") else None

    def usage_chunk(self, usage: UsageReply) -> bytes:
        return _encode(self._ended(self._form.line(""))) + b"\n"

    def take(self, output: Output) -> None:
        self._blocks.take_whole(output)
        self._entries += output.logprobs or ()

    def complete(self, usage: UsageReply) -> bytes:
        blocks = self._blocks.blocks
        thinking = "".join(block.text for block in blocks if block.kind == "reasoning")
        calls = [_call(block) for block in blocks if block.kind == "call"]
        text = "".join(block.text for block in blocks if block.kind == "text")
        line = self._form.line(text, thinking or None, calls or None)
        if self._logprobs is not None:
            self._add_logprobs(line, self._entries)
        return _encode(self._ended(line))

    def _add_logprobs(self, line: OllamaLine, entries: Sequence[LogprobEntry]) -> None:
        line.logprobs = chat_logprobs(entries, self._logprobs or 0).content

    def _ended(self, line: OllamaLine) -> OllamaLine:
        ended, first = time.monotonic(), self._run.first_at
        first = ended if first is None else first
        usage = self._run.usage
        line.done, line.done_reason = True, "length" if self._blocks.finish_reason == "length" else "stop"
        line.context = [] if self._form.generates else None
        line.total_duration, line.load_duration = _nanoseconds(ended - self._form.arrival), 0
        line.prompt_eval_count, line.eval_count = usage.prompt_tokens, usage.completion_tokens
        line.prompt_eval_duration = _nanoseconds(first - self._form.arrival)
        line.eval_duration = _nanoseconds(ended - first)
        return line


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _call(block: Block) -> CallOut:
    return CallOut(FunctionOut(block.name, block.arguments()))
