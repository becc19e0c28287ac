"""The parser: a model's text in any pieces, into content, reasoning and tool calls.

The same machine reads a stream and a complete answer, so that both give the same result. Its time is linear in the
text: what is not yet decided is held back, and that is never longer than the longest marker. Special tokens arrive
apart from text (`feed_marker`), so that text which only quotes one has no effect.

Text that follows a marker is kept until a call has begun. If none begins, the text is content.
"""

from __future__ import annotations

from headrace.formats.events import Event
from headrace.formats.machine import Machine
from headrace.formats.reader import Reader
from headrace.formats.states import Target
from headrace.formats.values import Schemas

__all__ = ["Parser"]

_MAX_NAME = 1000


class Parser:
    """One answer."""

    def __init__(self, machine: Machine, schemas: Schemas | None = None, reasoning: bool = False) -> None:
        """`schemas` of the tools' parameters by name. `reasoning`: the prompt has begun the reasoning already."""
        self._machine = machine
        self._schemas = schemas or {}
        self._state = machine.states["reasoning" if reasoning and machine.can_reason else "start"]
        self._text = ""
        self._at = 0
        self._events: list[Event] = []
        self._held: list[str] = []
        """Raw text since the last event, while it is not decided what it is."""
        self._header: list[str] = []
        self._name = ""
        self._id: str | None = None
        self._reader: Reader | None = None
        self._open = False
        """A call has begun and has not ended."""
        self._has_arguments = False
        self._called = False
        """A call has begun since the last marker that opens calls."""
        self._spaces: list[str] = []
        """Blanks of content or reasoning that are shown only if text follows."""
        self._spoken = False
        """Content has begun."""
        self._first = not reasoning
        """Neither reasoning nor a call has come."""
        self._thought = False
        """Reasoning has begun in this block."""

    @property
    def in_reasoning(self) -> bool:
        return self._state.state.role == "reasoning"

    def feed(self, text: str) -> list[Event]:
        """The events that a piece of text completes."""
        self._text = self._text[self._at :] + text
        self._at = 0
        self._run(final=False)
        return self._taken()

    def feed_marker(self, marker: str) -> list[Event]:
        """As `feed`, of a special token with this text."""
        marker = self._machine.stand_ins.of(marker)
        state = self._state.state
        in_reader = state.role == "reader"
        moves = self._machine.states[state.then].state.moves if in_reader else state.moves
        if marker not in moves or (self._reader is not None and self._reader.in_string):
            return self.feed(marker)
        self._run(final=True)
        if self._state.state.role == "reader" and self._reader is not None:
            self._end_reader(complete=True)
        # What was held may have changed the state.
        if marker in self._state.state.moves:
            self._move(marker)
        else:
            self._text, self._at = self._text[self._at :] + marker, 0
            self._run(final=False)
        return self._taken()

    def finish(self, complete: bool = True) -> list[Event]:
        """The last events. `complete`: the model ended the answer; otherwise it was truncated, with an open call."""
        self._run(final=True)
        role = self._state.state.role
        if role == "reader":
            self._end_reader(complete)
        elif role == "id":
            self._begin_call()
        if self._open:
            self._end_call(complete)
        if self._held:
            self._release(as_content=not self._called)
        self._show_spaces(shown=role in ("content", "start") and (self._spoken or self._first))
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        shown = self._machine.stand_ins.shown
        for event in events:
            event.text, event.raw = shown(event.text), shown(event.raw)
        return events

    def _run(self, final: bool) -> None:
        while self._at < len(self._text):
            if self._state.state.role == "reader":
                if not self._read(final):
                    return
            elif not self._lex(final):
                return

    # Text outside of readers

    def _lex(self, final: bool) -> bool:
        """Consume text up to a marker and the marker. False: more text is needed."""
        text, at, state = self._text, self._at, self._state
        stop, marker, held = state.first_marker(text, at, final)
        self._at = self._take(text[at:stop], at) if stop > at else at
        if self._state is not state or self._at < stop:
            return True
        if marker is not None:
            self._at = stop + len(marker)
            self._move(marker)
        return marker is not None and not held

    def _take(self, chunk: str, at: int) -> int:
        """Take in text without markers. Returns the index after what was consumed; the state may have changed."""
        role = self._state.state.role
        if role in {"content", "reasoning"}:
            self._say(chunk)
        elif role == "arguments":
            self._argue(chunk)
        elif role in {"start", "skip"}:
            return self._take_first(chunk, at)
        else:
            return self._take_header(chunk, at)
        return at + len(chunk)

    def _take_first(self, chunk: str, at: int) -> int:
        """Blanks, and the character that decides what follows them."""
        state = self._state.state
        bare = chunk.lstrip(" \t\r\n\f\v" + state.ignored)
        blanks = chunk[: len(chunk) - len(bare)]
        if blanks:
            (self._spaces if state.role == "start" else self._held).append(blanks)
        if not bare:
            return at + len(chunk)
        first = bare[0]
        target = state.chars.get(first) or (state.chars.get("") if first.isalpha() or first == "_" else None)
        if target is None:
            self._abandon() if state.role == "skip" else self._enter("content")
        else:
            if state.role == "start":
                self._begin_markup()
            self._enter(target)
        return at + len(blanks)

    def _take_header(self, chunk: str, at: int) -> int:
        state = self._state.state
        if state.chars and not "".join(self._header).strip() and (bare := chunk.lstrip()):
            target = state.chars.get(bare[0])
            if target is not None:
                blanks = chunk[: len(chunk) - len(bare)]
                self._held.append(blanks)
                self._enter(target)
                return at + len(blanks)
        self._held.append(chunk)
        if state.role != "header":
            self._header = ["".join([*self._header, chunk])]
            if len(self._header[0]) > _MAX_NAME:
                self._abandon()
        return at + len(chunk)

    def _abandon(self) -> None:
        """What has been held is no call."""
        self._release(as_content=not self._called)
        self._enter("content")

    # Markers

    def _move(self, marker: str) -> None:
        state = self._state.state
        move = state.moves[marker]
        if state.role == "content" and marker in self._machine.envelopes:
            self._show_spaces(shown=True)
        if state.role in ("start", "content", "reasoning", "arguments"):
            self._begin_markup()
        self._held.append(marker)
        if state.role in ("name", "id") and not self._end_header(state.role):
            self._abandon()
            return
        target = Target(move) if isinstance(move, str) else move(self._machine.stand_ins.shown("".join(self._held)))
        if target.name:
            self._name, self._id = target.name, None
        self._header = []
        self._enter(target.state)

    def _begin_markup(self) -> None:
        """A marker follows content or reasoning: blanks before it are shown only if it turns out to be content."""
        if self._state.state.role == "reasoning":
            self._show_spaces(shown=False)
        self._held += self._spaces
        self._spaces = []
        if self._open:
            self._end_call(complete=True)
        self._called = False
        self._header = []

    def _end_header(self, role: str) -> bool:
        """Take a call's name or id. False: there is none."""
        written = self._machine.stand_ins.shown("".join(self._header)).strip()
        self._header = []
        if role == "id":
            self._id = written or None
            return True
        tools = self._machine.tools
        found = (written, None) if tools is None or tools.call_id is None else tools.call_id(written)
        self._name, self._id = found
        return bool(self._name)

    def _enter(self, name: str) -> None:
        self._state = self._machine.states[name]
        state = self._state.state
        if state.role == "reader":
            assert state.reader is not None
            self._reader = state.reader(self._schemas)
            self._reader.use_stand_ins(self._machine.stand_ins)
        if state.role in ("reader", "arguments"):
            if self._name:
                self._begin_call()
            return
        if state.role in {"id", "name", "header"}:
            return
        if self._name:
            self._begin_call()
        if self._open:
            self._end_call(complete=True)
        if self._held and (state.role != "skip" or self._called):
            self._release(as_content=False)
        if state.role == "reasoning":
            self._thought = False
            self._first = False

    # Calls

    def _begin_call(self) -> None:
        self._release(as_content=False)
        self._emit(Event("call", self._name, call_id=self._id))
        self._name, self._id = "", None

    def _end_call(self, complete: bool) -> None:
        self._emit(Event("end", "" if complete else "truncated"))

    def _argue(self, chunk: str) -> None:
        shown = chunk if self._has_arguments else chunk.lstrip()
        if shown:
            self._emit(Event("arguments", shown, chunk))
        else:
            self._emit(Event("syntax", raw=chunk))

    def _read(self, final: bool) -> bool:
        reader = self._reader
        assert reader is not None
        before = self._at
        self._at = reader.read(self._text, before, final)
        if self._at > before:
            self._held.append(self._text[before : self._at])
        self._drain(reader)
        if reader.status == "more":
            return self._at > before and self._at < len(self._text)
        if reader.status == "failed" and not self._called:
            self._reader = None
            self._abandon()
        else:
            self._leave_reader()
        return True

    def _end_reader(self, complete: bool) -> None:
        """The text ended within a reader, or a special token cut it off."""
        reader = self._reader
        assert reader is not None
        reader.finish(complete)
        self._drain(reader)
        if not self._called:
            self._reader = None
            self._abandon()
            return
        if self._open:
            self._end_call(complete)
        self._leave_reader()

    def _leave_reader(self) -> None:
        then = self._state.state.then
        self._reader = None
        self._enter(then)

    def _drain(self, reader: Reader) -> None:
        if reader.events or self._called:
            if any(event.kind == "call" for event in reader.events) or self._called:
                self._release(as_content=False)
            for event in reader.events:
                self._emit(event)
            reader.events = []

    # Events

    def _emit(self, event: Event) -> None:
        if event.kind == "call":
            self._open = self._called = True
            self._has_arguments = self._first = False
        elif event.kind == "arguments":
            self._has_arguments = True
        elif event.kind == "end":
            if not self._has_arguments and not event.text:
                self._events.append(Event("arguments", "{}"))
            event.text = ""
            self._open = False
        self._events.append(event)

    def _release(self, as_content: bool) -> None:
        """Account for what was held."""
        raw = "".join(self._held)
        self._held = []
        if raw:
            self._emit(Event("content", raw, raw) if as_content else Event("syntax", raw=raw))
            self._spoken = self._spoken or as_content

    def _say(self, chunk: str) -> None:
        """Content or reasoning. Blanks at its end wait for what follows."""
        reasoning = self._state.state.role == "reasoning"
        body = chunk.rstrip() if reasoning or self._machine.has_calls else chunk
        if body:
            begun = self._thought if reasoning else self._spoken or self._first
            self._show_spaces(shown=begun)
            bare = body if begun else body.lstrip()
            if len(bare) < len(body):
                self._emit(Event("syntax", raw=body[: len(body) - len(bare)]))
            self._emit(Event("reasoning" if reasoning else "content", bare, bare))
            if reasoning:
                self._thought = True
            else:
                self._spoken = True
        if len(body) < len(chunk):
            self._spaces.append(chunk[len(body) :])

    def _show_spaces(self, shown: bool) -> None:
        raw = "".join(self._spaces)
        self._spaces = []
        if raw:
            kind = "syntax" if not shown else "reasoning" if self._state.state.role == "reasoning" else "content"
            self._events.append(Event(kind, raw if shown else "", raw))  # type: ignore[arg-type]
