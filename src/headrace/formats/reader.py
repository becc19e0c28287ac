"""The interface of argument readers, and helpers for text that arrives in pieces."""

from __future__ import annotations

import re
from typing import Literal

from headrace.formats.events import Event
from headrace.formats.stand_ins import NO_TOKENS, StandIns

__all__ = ["Reader", "ReaderStatus", "matched_literal", "search_end", "skip_blanks"]

ReaderStatus = Literal["more", "done", "failed"]
_BLANKS = re.compile(r"\s*")


class Reader:
    """Reads the body of one or more tool calls. Subclasses append events without `raw`; the parser accounts for it."""

    def __init__(self) -> None:
        self.status: ReaderStatus = "more"
        self.events: list[Event] = []
        self.stand_ins = NO_TOKENS

    def use_stand_ins(self, stand_ins: StandIns) -> None:
        """Called before any text. A reader whose literals are special tokens replaces them by their characters."""
        self.stand_ins = stand_ins

    @property
    def in_string(self) -> bool:
        """A marker that arrives now is part of a string."""
        return False

    def read(self, text: str, at: int, final: bool) -> int:
        """Take in `text` from index `at`. Returns the index of the first character that was not consumed: a short rest,
        given again with more text, or what follows after the last call. `final`: no more text will follow."""
        raise NotImplementedError

    def finish(self, complete: bool) -> None:
        """The text ended within the body. `complete`: the model ended it, so that open arguments are closed."""

    def call(self, name: str, call_id: str | None = None) -> None:
        self.events.append(Event("call", name, call_id=call_id))

    def arguments(self, text: str) -> None:
        if text:
            self.events.append(Event("arguments", text))

    def end(self) -> None:
        self.events.append(Event("end"))


def skip_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    assert found is not None
    return found.end()


def search_end(text: str, at: int, literal: str, final: bool) -> tuple[int, bool]:
    """(index, found): where the literal stands, or where its beginning may stand at the end of the text."""
    found = text.find(literal, at)
    if found >= 0:
        return found, True
    if not final:
        for start in range(max(at, len(text) - len(literal) + 1), len(text)):
            if literal.startswith(text[start:]):
                return start, False
    return len(text), False


def matched_literal(text: str, at: int, literals: tuple[str, ...], final: bool) -> str | None:
    """The literal that stands at `at`, "" if none does, None if more text must decide."""
    for literal in literals:
        if text.startswith(literal, at):
            return literal
    rest = text[at : at + max(map(len, literals))]
    return None if not final and any(literal.startswith(rest) for literal in literals) else ""
