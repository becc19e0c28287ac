"""A tool format and a reasoning format compiled into one table, shared by all parsers of a model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from headrace.formats.states import Move, ReasoningFormat, State, ToolFormat

__all__ = ["CompiledState", "Machine"]


@dataclass(frozen=True, slots=True)
class CompiledState:
    name: str
    state: State
    pattern: re.Pattern[str] | None
    """Markers that are found in text, the longest first; the others arrive as special tokens."""
    prefixes: frozenset[str]
    """Proper prefixes of those markers: text that may become one."""
    longest: int

    def first_marker(self, text: str, at: int, final: bool) -> tuple[int, str | None, bool]:
        """(index, marker, whether text from the index on is held back because it may become a marker)"""
        found = self.pattern.search(text, at) if self.pattern is not None else None
        stop = len(text) if found is None else found.start()
        if not final:
            for start in range(max(at, len(text) - self.longest + 1), min(stop + 1, len(text))):
                if text[start:] in self.prefixes:
                    return start, None, True
        return stop, None if found is None else found.group(), False


class Machine:
    """The states of one model's answers. Immutable."""

    def __init__(
        self, tools: ToolFormat | None, reasoning: ReasoningFormat | None, special: Collection[str] = ()
    ) -> None:
        """`special`: markers that the vocabulary has as tokens. They count only as tokens, not as text."""
        self.tools = tools
        self.has_calls = tools is not None
        self.can_reason = reasoning is not None
        self.inline = tools.inline if tools is not None else frozenset[str]()
        states = _states(tools, reasoning)
        self.states = {name: _compiled(name, state, frozenset(special)) for name, state in states.items()}
        self.markers = frozenset(marker for state in states.values() for marker in state.moves)
        """Every marker of the table."""


def _states(tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> dict[str, State]:
    if reasoning is not None and reasoning.complete is not None:
        return dict(tools.states if tools is not None and tools.name == reasoning.name else reasoning.complete)
    if tools is not None and "start" in tools.states:
        return dict(tools.states)
    calls: Mapping[str, Move] = tools.opens if tools is not None else {}
    opens: dict[str, Move] = {}
    closes: dict[str, Move] = {}
    states: dict[str, State] = {}
    if reasoning is not None:
        opens = dict(reasoning.opens)
        closes = dict.fromkeys(reasoning.closes, "start")
        states |= reasoning.states
        states["reasoning"] = State("reasoning", {**closes, **calls})
    # An end marker without a beginning is dropped.
    anywhere = dict(calls) if reasoning is not None and reasoning.start_only else {**calls, **opens, **closes}
    states["start"] = State("start", {**anywhere, **opens}, chars=tools.start_chars if tools is not None else {})
    states["content"] = State("content", anywhere)
    for name, state in (tools.states if tools is not None else {}).items():
        states[name] = replace(state, moves={**calls, **state.moves}) if state.role == "skip" else state
    return states


def _compiled(name: str, state: State, special: frozenset[str]) -> CompiledState:
    written = sorted((marker for marker in state.moves if marker not in special), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, written))) if written else None
    prefixes = frozenset(marker[:end] for marker in written for end in range(1, len(marker)))
    return CompiledState(name, state, pattern, prefixes, max(map(len, written), default=0))
