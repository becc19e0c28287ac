"""What readers of arguments in a syntax of their own have in common: steps, and JSON that is written piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from headrace.formats.reader import Reader
from headrace.formats.values import json_string

__all__ = ["Bracket", "NestedReader", "Step"]

Step = Callable[[str, int, bool], int | None]
"""Takes in text as `Reader.read` does, and sets the next step. None: more text must decide."""
Bracket = Literal["{", "["]


class NestedReader(Reader):
    """Subclasses have the steps. Objects, lists, strings and scalars are written as JSON, as soon as they are known."""

    def __init__(self, first: Step) -> None:
        super().__init__()
        self._step = first
        self._open: list[Bracket] = []
        self._empty = True
        """The innermost bracket has no item yet."""
        self._parts: list[str] = []
        """Text that is kept until it is complete."""
        self._in_text = False

    @property
    def in_string(self) -> bool:
        return self._in_text

    def read(self, text: str, at: int, final: bool) -> int:
        while at < len(text) and self.status == "more":
            moved = self._step(text, at, final)
            if moved is None:
                break
            at = moved
        return at

    def _keep(self, text: str) -> str:
        """All text that has been kept, with this text, as the model wrote it."""
        self._parts.append(text)
        return self.stand_ins.shown("".join(self._parts))

    def _kept(self) -> str:
        """As `_keep`; nothing is kept afterwards."""
        found = self._keep("")
        self._parts = []
        return found

    def _item(self, key: str) -> None:
        """A value follows, in an object with this key."""
        if not self._empty:
            self.arguments(", ")
        if self._open[-1] == "{":
            self.arguments(json_string(key) + ": ")
        self._empty = False

    def _enter(self, bracket: Bracket) -> None:
        self.arguments(bracket)
        self._open.append(bracket)
        self._empty = True

    def _leave(self) -> None:
        self.arguments("}" if self._open.pop() == "{" else "]")
        self._empty = False

    def _begin_text(self) -> None:
        self.arguments('"')
        self._in_text = True

    def _add_text(self, text: str) -> None:
        self.arguments(json_string(self.stand_ins.shown(text))[1:-1])

    def _end_text(self) -> None:
        self.arguments('"')
        self._in_text = False

    def _close_all(self) -> None:
        """End a string and every bracket that are open."""
        if self._in_text:
            self._end_text()
        while self._open:
            self._leave()
