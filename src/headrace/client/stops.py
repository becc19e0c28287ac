"""Finds stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["StopFinder", "StopMatch", "TextCodec", "special_stops"]


class TextCodec(Protocol):
    """Text to ids and back."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


def special_stops(stops: Sequence[str], tokenizer: TextCodec) -> tuple[int, ...]:
    """Ids of the special tokens whose text is a stop string. If special tokens are left out of the text, such a stop
    string can only be found by its token."""
    found = [tokenizer.encode(stop, False) for stop in stops]
    return tuple(
        ids[0] for ids in found if len(ids) == 1 and not tokenizer.decode(ids, True) and tokenizer.decode(ids, False)
    )


@dataclass(frozen=True, slots=True)
class StopMatch:
    stop: str
    text: str
    """The text to emit before the end: up to the stop or, if it is included, to its end."""


class StopFinder:
    """Holds back text that may be the start of a stop string.

    The first piece that completes any stop string decides. Of the stop strings that are complete then, the one that
    starts first is chosen, and of those the shortest. Pieces are the texts of tokens, so the result only depends on the
    tokens and never on their batching.
    """

    def __init__(self, stops: tuple[str, ...], include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = ""

    def push(self, piece: str) -> str | StopMatch:
        """The text that can be emitted now, or the match that ends the choice."""
        text = self._held + piece
        found = [(at, len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, length, stop = min(found)
            self._held = ""
            return StopMatch(stop, text[: at + length if self._include else at])
        at = self._first_start(text)
        self._held = text[at:]
        return text[:at]

    def flush(self) -> str:
        """The text that was held back and did not become a stop."""
        text, self._held = self._held, ""
        return text

    def _first_start(self, text: str) -> int:
        """The start of the longest suffix that begins a stop string; the end of the text if there is none."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for at in range(max(0, len(text) - longest), len(text)):
            tail = text[at:]
            if any(stop.startswith(tail) for stop in self._stops):
                return at
        return len(text)
