"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Match", "StopFinder", "special_stops"]


class Codec(Protocol):
    """Text to ids and back."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


def special_stops(stops: Sequence[str], tokenizer: Codec) -> tuple[int, ...]:
    """Ids of the special tokens whose text is a stop string. Where special tokens are left out of the text, the text never shows
    them: the tokens themselves must stop."""
    found = [tokenizer.encode(stop, False) for stop in stops]
    return tuple(
        ids[0] for ids in found if len(ids) == 1 and not tokenizer.decode(ids, True) and tokenizer.decode(ids, False)
    )


@dataclass(frozen=True, slots=True)
class Match:
    stop: str
    text: str
    """What is left to emit, up to the stop or, where it is included, to its end."""


class StopFinder:
    """Holds back text that may be the start of a stop string.

    The first piece after which any stop string is complete decides; among those complete by then, the one that starts first
    wins, and of those the shortest. Pieces are tokens' texts, so the answer depends on the tokens alone and never on how they are batched.
    """

    def __init__(self, stops: tuple[str, ...], include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = ""

    def push(self, piece: str) -> str | Match:
        """The text that can be emitted now, or the match that ends it all."""
        text = self._held + piece
        found = [(at, len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, length, stop = min(found)
            self._held = ""
            return Match(stop, text[: at + length if self._include else at])
        at = self._first_start(text)
        self._held = text[at:]
        return text[:at]

    def flush(self) -> str:
        """What was held and never became a stop."""
        text, self._held = self._held, ""
        return text

    def _first_start(self, text: str) -> int:
        """Where the longest suffix that begins a stop string starts; the text's end where there is none."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for at in range(max(0, len(text) - longest), len(text)):
            tail = text[at:]
            if any(stop.startswith(tail) for stop in self._stops):
                return at
        return len(text)
