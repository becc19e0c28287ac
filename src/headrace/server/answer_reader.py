"""Reads one choice's pieces with the model's formats, into deltas."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from headrace.client.request_outputs import TextStream
from headrace.formats.events import Event
from headrace.formats.parser import Parser
from headrace.server.replies import CalledFunction, ChatDelta, ToolCallDelta

__all__ = ["AnswerReader", "ReadingOptions", "StreamTokenizer"]

_TAIL = 8
_BROKEN = "\ufffd"


class StreamTokenizer(Protocol):
    def stream(self, skip_special_tokens: bool = True, prompt_tail: Sequence[int] = ()) -> TextStream: ...


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Settings that the readers of one request's choices share."""

    markers: Mapping[int, str]
    """Special tokens that are markers."""
    counts: bool = False
    """Tokens of the reasoning are counted."""
    prompt_tail: Sequence[int] = ()
    skip_special_tokens: bool = True
    shows_stops: bool = False
    """A token that ends the answer is part of the text."""
    hides_reasoning: bool = False
    """The answer has no reasoning."""
    single: bool = False
    """Calls after the first are dropped."""
    short_ids: bool = False
    on_call: Callable[[str], None] | None = None
    """Called with the name of each call."""


class _Token(NamedTuple):
    length: int
    """Of its text."""
    marker: str | None = None
    tokens: int = 1
    """0: not a token, but the rest of one before it."""


@dataclass(slots=True)
class AnswerReader:
    """Reads one choice. The text comes from the engine's client, already cut at stops. The token ids show where the
    special tokens are, which the text does not show."""

    parser: Parser
    options: ReadingOptions
    tokenizer: StreamTokenizer
    reasoning_tokens: int = 0
    calls: int = 0
    """Calls that have started, including those that were dropped."""
    _stream: TextStream | None = None
    _tokens: deque[_Token] = field(default_factory=deque)
    """Tokens whose text has not come yet."""
    _held: list[_Token] = field(default_factory=list)
    """Markers, and tokens after them, that came within a character: whether its bytes belong together shows later."""
    _text: str = ""
    _at: int = 0

    def __post_init__(self) -> None:
        if self.options.markers or self.options.counts:
            self._stream = self.tokenizer.stream(self.options.skip_special_tokens, self.options.prompt_tail)

    def read(self, text: str, token_ids: Sequence[int], finish: str | None, stop: int | str | None) -> list[ChatDelta]:
        """The deltas of one piece. `finish` and `stop` are its finish and stop reason."""
        self._text = self._text[self._at :] + text
        self._at = 0
        events: list[Event] = []
        if self._stream is None:
            self._feed(len(self._text), None, events, len(token_ids))
        else:
            self._queue(self._stream, token_ids, finish == "stop" and isinstance(stop, int))
            if finish is not None and self._held:
                self._release(len(self._text) - self._at > sum(token.length for token in self._tokens))
            while self._tokens and self._tokens[0].length <= len(self._text) - self._at:
                token = self._tokens.popleft()
                self._feed(token.length, token.marker, events, token.tokens)
        if finish is not None:
            self._feed(len(self._text) - self._at, None, events, 0)
            events += self.parser.finish(finish == "stop")
        return self._deltas(events)

    def finish_reason(self, reason: str | None) -> str | None:
        """The finish reason. A truncated answer stays truncated, even if it has calls."""
        return "tool_calls" if reason == "stop" and self.calls else reason

    def _queue(self, stream: TextStream, token_ids: Sequence[int], ended: bool) -> None:
        last = len(token_ids) - 1
        for at, token in enumerate(token_ids):
            hidden = ended and at == last and not self.options.shows_stops
            unfinished, marker = stream.unfinished, self.options.markers.get(token)
            text = "" if hidden else stream.push(token)
            if not text and (self._held or (unfinished and marker is not None)):
                self._held.append(_Token(0, marker))
                continue
            # A character that was not completed stands before the markers that came within it.
            broken = unfinished and text.startswith(_BROKEN) and (bool(self._held) or marker is not None)
            self._release(broken)
            self._tokens.append(_Token(len(text) - broken, marker))

    def _release(self, broken: bool) -> None:
        if broken:
            self._tokens.append(_Token(1, tokens=0))
        self._tokens += self._held
        self._held.clear()

    def _feed(self, length: int, marker: str | None, events: list[Event], tokens: int) -> None:
        before = self.parser.in_reasoning
        piece = self._text[self._at : self._at + length]
        self._at += length
        events += self.parser.feed(piece) if marker is None else self.parser.feed_marker(marker)
        if before or self.parser.in_reasoning:
            self.reasoning_tokens += tokens

    def _deltas(self, events: Sequence[Event]) -> list[ChatDelta]:
        """One delta for each run of events of one kind."""
        found: list[tuple[str, list[str], ChatDelta]] = []
        for event in events:
            if event.kind == "call":
                self.calls += 1
                if self.options.on_call is not None:
                    self.options.on_call(event.text)
            if event.kind in ("syntax", "end") or (event.kind in ("call", "arguments") and self._dropped):
                continue
            if event.kind == "reasoning" and self.options.hides_reasoning:
                continue
            if event.kind == "call" or not found or found[-1][0] != event.kind:
                found.append((event.kind, [], self._delta(event)))
            if event.kind != "call":
                found[-1][1].append(event.text)
        return [_with_text(kind, "".join(texts), delta) for kind, texts, delta in found]

    @property
    def _dropped(self) -> bool:
        return self.options.single and self.calls > 1

    def _delta(self, event: Event) -> ChatDelta:
        if event.kind not in ("call", "arguments"):
            return ChatDelta()
        call = ToolCallDelta(self.calls - 1, CalledFunction(""))
        if event.kind == "call":
            call.id, call.type, call.function.name = event.call_id or self._new_id(), "function", event.text
        return ChatDelta(tool_calls=[call])

    def _new_id(self) -> str:
        return secrets.token_hex(5)[:9] if self.options.short_ids else f"call_{secrets.token_hex(12)}"


def _with_text(kind: str, text: str, delta: ChatDelta) -> ChatDelta:
    if kind == "content":
        delta.content = text
    elif kind == "reasoning":
        delta.reasoning_content = delta.reasoning = text
    elif kind == "arguments" and isinstance(delta.tool_calls, list):
        delta.tool_calls[0].function.arguments = text
    return delta
