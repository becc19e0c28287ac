"""Folds the deltas of one answer into blocks: runs of text, runs of reasoning, and calls.

APIs whose answers are lists (Anthropic's content, the output of Responses) write their events from what happens to the
blocks, and their complete answers from the blocks at the end. So a stream and a complete answer are the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from headrace.client.api import Output
from headrace.server.answer_reader import AnswerReader
from headrace.server.replies import ChatDelta

__all__ = ["AnswerBlocks", "Block", "BlockEvent"]

BlockKind = Literal["text", "reasoning", "call"]


@dataclass(slots=True)
class Block:
    index: int
    kind: BlockKind
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text, the reasoning, or the arguments' JSON text."""
        return "".join(self.pieces)

    def arguments(self) -> dict[str, Any]:
        """A call's arguments as an object. Those that were cut off, or are no object, stand as their text under the key
        `unparsed`."""
        text = self.text
        try:
            found = json.loads(text or "{}")
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {"unparsed": text}


class BlockEvent(NamedTuple):
    what: Literal["open", "piece", "close"]
    block: Block
    text: str = ""


class AnswerBlocks:
    """One block is open at a time."""

    def __init__(self, reader: AnswerReader | None) -> None:
        """`reader`: None if all text is content."""
        self._reader = reader
        self.blocks: list[Block] = []
        self._open: Block | None = None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    @property
    def reasoning_tokens(self) -> int:
        return 0 if self._reader is None else self._reader.reasoning_tokens

    def take(self, output: Output) -> Iterator[BlockEvent]:
        """The events of one piece of the answer; the last one closes the last block."""
        for delta in self._deltas(output):
            yield from self._take(delta)
        if output.finish_reason is not None:
            self.stop_reason = output.stop_reason
            reason = output.finish_reason
            self.finish_reason = reason if self._reader is None else self._reader.finish_reason(reason)
            yield from self._close()

    def take_whole(self, output: Output) -> None:
        """As `take`, for an answer that is not streamed."""
        for _ in self.take(output):
            pass

    def _deltas(self, output: Output) -> Sequence[ChatDelta]:
        if self._reader is not None:
            return self._reader.read(output.text, output.token_ids, output.finish_reason, output.stop_reason)
        return [ChatDelta(content=output.text)] if output.text else []

    def _take(self, delta: ChatDelta) -> Iterator[BlockEvent]:
        if isinstance(delta.content, str):
            yield from self._run("text", delta.content)
        elif isinstance(delta.reasoning, str):
            yield from self._run("reasoning", delta.reasoning)
        for call in delta.tool_calls if isinstance(delta.tool_calls, list) else ():
            if isinstance(call.id, str) and isinstance(call.function.name, str):
                yield from self._start(Block(len(self.blocks), "call", call.id, call.function.name))
            if call.function.arguments:
                yield from self._piece(call.function.arguments)

    def _run(self, kind: BlockKind, text: str) -> Iterator[BlockEvent]:
        if not text:
            return
        if self._open is None or self._open.kind != kind:
            yield from self._start(Block(len(self.blocks), kind))
        yield from self._piece(text)

    def _start(self, block: Block) -> Iterator[BlockEvent]:
        yield from self._close()
        self.blocks.append(block)
        self._open = block
        yield BlockEvent("open", block)

    def _piece(self, text: str) -> Iterator[BlockEvent]:
        assert self._open is not None
        self._open.pieces.append(text)
        yield BlockEvent("piece", self._open, text)

    def _close(self) -> Iterator[BlockEvent]:
        if self._open is not None:
            yield BlockEvent("close", self._open)
            self._open = None
