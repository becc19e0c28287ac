"""Answers in the form of OpenAI's Responses API: complete, and as a stream of named and numbered events."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from headrace.client.api import Output
from headrace.server.answer_blocks import AnswerBlocks, Block, BlockEvent
from headrace.server.exchange import ChunkUsage
from headrace.server.generation import GenerationRun
from headrace.server.http_errors import HttpError
from headrace.server.logprobs import chat_logprobs
from headrace.server.replies import ChatLogprob, UsageReply
from headrace.server.request_ids import new_request_id
from headrace.server.responses_schemas import (
    ContentPartOut,
    InputDetails,
    OutputDetails,
    OutputItem,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
)
from headrace.server.stream_form import named_event

__all__ = ["ResponsesDialect"]

_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}
_DONE = "completed"


class ResponsesDialect:
    """The answer is made of the events' items, so that a stream and a complete answer are the same."""

    def __init__(
        self,
        response: ResponseObject,
        run: GenerationRun,
        blocks: AnswerBlocks,
        logprobs: int | None,
        encrypted: bool,
    ) -> None:
        """`response`: in progress, without output. `logprobs`: how many alternatives are told; None: no logprobs.
        `encrypted`: reasoning items have `encrypted_content`."""
        self.response = response
        self._run, self._blocks = run, blocks
        self._logprobs, self._encrypted = logprobs, encrypted
        self._next = 0
        self._scores: list[ChatLogprob] = []
        """Of tokens whose text has not come yet."""

    def chunk(self, output: Output, usage: ChunkUsage) -> bytes:
        return b"".join(named_event(event.type, event) for event in [*self._begin(), *self._events(output)])

    def take(self, output: Output) -> None:
        self._events(output)

    def usage_chunk(self, usage: UsageReply) -> bytes:
        self._end(usage)
        last = self._event(f"response.{self.response.status}", response=self.response)
        return named_event(last.type, last)

    def complete(self, usage: UsageReply) -> bytes:
        self._end(usage)
        return msgspec.json.encode(self.response)

    def fail(self, error: HttpError) -> bytes:
        """The events that end a stream after an error."""
        code = error.code or "server_error"
        begun = [named_event(event.type, event) for event in self._begin()]
        told = self._event("error", code=code, message=error.message, param=error.param)
        self.response.status = "failed"
        self.response.error = {"code": code, "message": error.message}
        last = self._event("response.failed", response=self.response)
        return b"".join([*begun, named_event("error", told), named_event(last.type, last)])

    def _event(self, kind: str, **fields: Any) -> ResponseEvent:
        event = ResponseEvent(kind, self._next, **fields)
        self._next += 1
        return event

    def _begin(self) -> list[ResponseEvent]:
        if self._next:
            return []
        # The response goes on growing: the events have it as it is now.
        empty = msgspec.structs.replace(self.response, output=[])
        return [
            self._event("response.created", response=empty),
            self._event("response.in_progress", response=empty),
        ]

    def _end(self, usage: UsageReply) -> None:
        response = self.response
        if self._blocks.finish_reason == "length":
            response.status = "incomplete"
            response.incomplete_details = {"reason": "max_output_tokens"}
            if response.output:
                response.output[-1].status = "incomplete"
        else:
            response.status = _DONE
            response.completed_at = int(time.time())
        response.usage = ResponseUsage(
            usage.prompt_tokens,
            InputDetails(usage.prompt_tokens_details.cached_tokens, 0),
            usage.completion_tokens,
            OutputDetails(self._blocks.reasoning_tokens),
            usage.total_tokens,
        )

    def _events(self, output: Output) -> list[ResponseEvent]:
        if self._logprobs is not None and output.logprobs:
            self._scores += chat_logprobs(output.logprobs, self._logprobs).content
        found: list[ResponseEvent] = []
        for event in self._blocks.take(output):
            if event.what == "open":
                found += self._open(event.block)
            elif event.what == "piece":
                found.append(self._piece(event))
            else:
                # A block that closes with the answer has been cut off with it.
                found += self._close(event.block, self._blocks.finish_reason == "length")
        return found

    def _open(self, block: Block) -> list[ResponseEvent]:
        item = OutputItem(new_request_id(_PREFIXES[block.kind]).replace("-", "_"), _kind(block), "in_progress")
        if block.kind == "call":
            item.call_id, item.name, item.arguments = block.call_id, block.name, ""
        else:
            item.content = []
            item.role, item.summary = ("assistant", None) if block.kind == "text" else (None, [])
        self.response.output.append(item)
        events = [self._event("response.output_item.added", output_index=block.index, item=_copy(item))]
        if item.content is not None:
            item.content.append(_empty_part(block))
            events.append(self._inside("response.content_part.added", block, part=_empty_part(block)))
        return events

    def _inside(self, kind: str, block: Block, **fields: Any) -> ResponseEvent:
        """An event within an item."""
        item = self.response.output[block.index]
        at = {} if block.kind == "call" else {"content_index": 0}
        return self._event(kind, output_index=block.index, item_id=item.id, **at, **fields)

    def _piece(self, event: BlockEvent) -> ResponseEvent:
        block, scores = event.block, self._scores
        self._scores = []
        if block.kind == "call":
            return self._inside("response.function_call_arguments.delta", block, delta=event.text)
        if block.kind == "reasoning":
            return self._inside("response.reasoning_text.delta", block, delta=event.text)
        content = self.response.output[block.index].content
        assert content is not None
        assert content[0].logprobs is not None
        content[0].logprobs += scores
        return self._inside("response.output_text.delta", block, delta=event.text, logprobs=scores)

    def _close(self, block: Block, cut: bool) -> list[ResponseEvent]:
        item, text = self.response.output[block.index], block.text
        item.status = "incomplete" if cut else _DONE
        if block.kind == "call":
            item.arguments = text
            done = "response.function_call_arguments.done"
            events = [self._inside(done, block, name=block.name, arguments=text)]
        else:
            assert item.content is not None
            part = item.content[0]
            part.text = text
            if block.kind == "text":
                events = [self._inside("response.output_text.done", block, text=text, logprobs=part.logprobs)]
            else:
                events = [self._inside("response.reasoning_text.done", block, text=text)]
                item.encrypted_content = text if self._encrypted else None
            events.append(self._inside("response.content_part.done", block, part=part))
        return [*events, self._event("response.output_item.done", output_index=block.index, item=item)]


def _kind(block: Block) -> str:
    return {"text": "message", "reasoning": "reasoning", "call": "function_call"}[block.kind]


def _empty_part(block: Block) -> ContentPartOut:
    if block.kind == "reasoning":
        return ContentPartOut("reasoning_text", "")
    return ContentPartOut("output_text", "", [], [])


def _copy(item: OutputItem) -> OutputItem:
    return msgspec.structs.replace(item, content=None if item.content is None else [])
