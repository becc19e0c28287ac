"""Answers in the form of Anthropic's messages API: complete, and as a stream of named events."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.client.api import Output, Usage
from headrace.server.answer_blocks import AnswerBlocks, Block, BlockEvent
from headrace.server.exchange import ChunkUsage
from headrace.server.generation import GenerationRun
from headrace.server.messages_schemas import MessageReply, MessagesUsage, ReplyBlock, StreamEvent
from headrace.server.replies import UsageReply
from headrace.server.stream_form import named_event

__all__ = ["MessagesDialect"]

_PING = named_event("ping", {"type": "ping"})


class MessagesDialect:
    def __init__(
        self,
        model: str,
        message_id: str,
        run: GenerationRun,
        blocks: AnswerBlocks,
        max_tokens: int,
        stop_sequence: Callable[[int | str | None], str | None],
    ) -> None:
        """`max_tokens`: the request's, which the context may have cut. `stop_sequence`: the sequence for a stop
        reason."""
        self._model, self._id, self._run, self._blocks = model, message_id, run, blocks
        self._max_tokens = max_tokens
        self._stop_sequence = stop_sequence
        self._started = False

    def chunk(self, output: Output, usage: ChunkUsage) -> bytes:
        written = b""
        if not self._started:
            self._started = True
            written = _write(StreamEvent("message_start", message=self._message([]))) + _PING
        return written + b"".join(_events(event) for event in self._blocks.take(output))

    def usage_chunk(self, usage: UsageReply) -> bytes:
        reason, sequence = self._reason()
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        end = StreamEvent("message_delta", delta=delta, usage=_usage(self._run.usage))
        return _write(end) + _write(StreamEvent("message_stop"))

    def take(self, output: Output) -> None:
        self._blocks.take_whole(output)

    def complete(self, usage: UsageReply) -> bytes:
        reply = self._message([_whole(block) for block in self._blocks.blocks])
        reply.stop_reason, reply.stop_sequence = self._reason()
        return msgspec.json.encode(reply)

    def _message(self, content: list[ReplyBlock]) -> MessageReply:
        return MessageReply(self._id, "message", "assistant", self._model, content, None, None, _usage(self._run.usage))

    def _reason(self) -> tuple[str | None, str | None]:
        """(stop_reason, stop_sequence)."""
        reason = self._blocks.finish_reason
        if reason == "tool_calls":
            return "tool_use", None
        if reason == "length":
            cut = self._run.usage.completion_tokens < self._max_tokens
            return "model_context_window_exceeded" if cut else "max_tokens", None
        sequence = self._stop_sequence(self._blocks.stop_reason)
        return ("end_turn" if sequence is None else "stop_sequence"), sequence


def _usage(usage: Usage) -> MessagesUsage:
    fresh = usage.prompt_tokens - usage.cached_tokens
    return MessagesUsage(fresh, 0, usage.cached_tokens, usage.completion_tokens)


def _write(event: StreamEvent) -> bytes:
    return named_event(event.type, event)


def _events(event: BlockEvent) -> bytes:
    index = event.block.index
    if event.what == "open":
        return _write(StreamEvent("content_block_start", index, content_block=_empty(event.block)))
    if event.what == "piece":
        return _write(StreamEvent("content_block_delta", index, delta=_delta(event.block.kind, event.text)))
    end = b""
    if event.block.kind == "reasoning":
        signed = {"type": "signature_delta", "signature": _signature(event.block.text)}
        end = _write(StreamEvent("content_block_delta", index, delta=signed))
    return end + _write(StreamEvent("content_block_stop", index))


def _empty(block: Block) -> ReplyBlock:
    if block.kind == "call":
        return ReplyBlock("tool_use", id=block.call_id, name=block.name, input={})
    if block.kind == "reasoning":
        return ReplyBlock("thinking", thinking="", signature="")
    return ReplyBlock("text", text="")


def _delta(kind: str, text: str) -> dict[str, Any]:
    if kind == "call":
        return {"type": "input_json_delta", "partial_json": text}
    if kind == "reasoning":
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "text_delta", "text": text}


def _whole(block: Block) -> ReplyBlock:
    if block.kind == "call":
        return ReplyBlock("tool_use", id=block.call_id, name=block.name, input=block.arguments())
    if block.kind == "reasoning":
        return ReplyBlock("thinking", thinking=block.text, signature=_signature(block.text))
    return ReplyBlock("text", text=block.text)


def _signature(thinking: str) -> str:
    """Clients drop thinking without a signature, and send it back with one, which nothing here reads."""
    return hashlib.sha256(thinking.encode(errors="surrogatepass")).hexdigest()[:32]
