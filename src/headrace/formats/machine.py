"""A tool format and a reasoning format compiled into one table, shared by all parsers of a model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from headrace.formats.stand_ins import StandIns
from headrace.formats.states import Move, ReasoningFormat, State, ToolFormat

__all__ = ["CompiledState", "Machine"]


@dataclass(frozen=True, slots=True)
class CompiledState:
    """Special tokens in the markers are replaced by their stand-ins."""

    name: str
    state: State
    pattern: re.Pattern[str] | None
    """The markers, the longest first."""
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
        """`special`: markers, and parts of them, that the vocabulary has as tokens. They count only as tokens, not as
        text."""
        self.tools = tools
        self.has_calls = tools is not None
        self.can_reason = reasoning is not None
        given = [found for found in (tools, reasoning) if found is not None]
        self.inline = frozenset[str]().union(*(found.inline for found in given))
        self.dropped = frozenset[str]().union(*(found.dropped for found in given))
        states = _states(tools, reasoning, self.dropped)
        self.markers = frozenset(marker for state in states.values() for marker in state.moves)
        """Every marker of the table."""
        self.stand_ins = StandIns(special)
        self.states = {name: _compiled(name, state, self.stand_ins) for name, state in states.items()}
        self.envelopes = frozenset(map(self.stand_ins.put, self.dropped))
        """`dropped` with stand-ins."""


def _states(tools: ToolFormat | None, reasoning: ReasoningFormat | None, dropped: frozenset[str]) -> dict[str, State]:
    if reasoning is not None and reasoning.complete is not None:
        return dict(tools.states if tools is not None and tools.name == reasoning.name else reasoning.complete)
    if tools is not None and "start" in tools.states:
        return dict(tools.states)
    calls: Mapping[str, Move] = tools.opens if tools is not None else {}
    opens: dict[str, Move] = {}
    closes: dict[str, Move] = dict.fromkeys(dropped, "start")
    states: dict[str, State] = {}
    if reasoning is not None:
        opens = dict(reasoning.opens)
        closes |= dict.fromkeys(reasoning.closes, "start")
        states |= reasoning.states
        states["reasoning"] = State("reasoning", {**closes, **calls})
    # An end marker without a beginning is dropped.
    anywhere = dict(calls) if reasoning is not None and reasoning.start_only else {**calls, **opens, **closes}
    states["start"] = State("start", {**anywhere, **opens}, chars=tools.start_chars if tools is not None else {})
    states["content"] = State("content", anywhere)
    for name, state in (tools.states if tools is not None else {}).items():
        around = {**calls, **dict.fromkeys(dropped, "start"), **state.moves}
        states[name] = replace(state, moves=around) if state.role == "skip" else state
    return states


def _compiled(name: str, state: State, stand_ins: StandIns) -> CompiledState:
    moves = {stand_ins.put(marker): move for marker, move in state.moves.items()}
    written = sorted(moves, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, written))) if written else None
    prefixes = frozenset(marker[:end] for marker in written for end in range(1, len(marker)))
    return CompiledState(name, replace(state, moves=moves), pattern, prefixes, max(map(len, written), default=0))
