"""The state of a running plan. It never changes: an operation makes a new one, so branches cannot see one another."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headrace.errors import ProgramError

__all__ = ["MOST_TEXT", "Conversation", "Tail"]

MOST_TEXT = 16 << 20
"""Most characters of a conversation."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A text, or messages of which the last one may be open."""

    messages: tuple[tuple[str, str], ...] = ()
    """(role, content) of the messages that have ended."""
    role: str | None = None
    """The open message's."""
    text: str = ""
    """The open message's content, or the text of a state without messages."""

    size: int = 0
    """Characters of all messages."""
    known: Any = field(default=None, compare=False)
    """The backend's own, of the last generation: it goes on from there when text has been added."""

    @property
    def is_chat(self) -> bool:
        return self.role is not None or bool(self.messages)

    def add(self, text: str) -> Conversation:
        """Raises ProgramError if the conversation becomes too long."""
        if self.size + len(text) > MOST_TEXT:
            raise ProgramError(f"a conversation has at most {MOST_TEXT} characters")
        return replace(self, text=self.text + text, size=self.size + len(text))

    def begin(self, role: str) -> Conversation:
        return Conversation(self.messages, role, "", self.size, self.known)

    def end(self) -> Conversation:
        assert self.role is not None
        return Conversation((*self.messages, (self.role, self.text)), size=self.size, known=self.known)

    def knowing(self, known: Any) -> Conversation:
        return replace(self, known=known)

    def as_messages(self) -> list[dict[str, str]]:
        """In OpenAI's form. An open message without content is left out: the model is about to begin it."""
        found = [*self.messages]
        if self.role is not None and self.text:
            found.append((self.role, self.text))
        return [{"role": role, "content": text} for role, text in found]


class Tail(NamedTuple):
    """What follows a generation that has not ended, in its conversation."""

    text: str = ""
    """In its own message."""
    turns: tuple[tuple[str, str], ...] | None = None
    """(role, content) of the messages behind that one; None: it has not ended."""
    role: str | None = None
    """Of the open message behind them."""
    opening: str = ""
    """The open message's content so far."""

    def add(self, text: str) -> Tail:
        if self.turns is None:
            return self._replace(text=self.text + text)
        return self._replace(opening=self.opening + text)

    def begin(self, role: str) -> Tail:
        return self._replace(role=role)

    def end(self) -> Tail:
        if self.turns is None or self.role is None:
            return Tail(self.text, ())
        return Tail(self.text, (*self.turns, (self.role, self.opening)))

    @property
    def size(self) -> int:
        return len(self.text) + len(self.opening) + sum(len(text) for _, text in self.turns or ())
