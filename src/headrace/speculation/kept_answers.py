"""Answers of earlier sequences, for the ones that come later; bounded, first in, first out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from headrace.speculation.occurrences import GAP, Occurrences

__all__ = ["KeptAnswers"]

_PARTS = 4
"""Answers are dropped together, a quarter of all tokens at a time: an index cannot forget single tokens."""


class _Part:
    """Answers that came one after another, in one index for each namespace."""

    def __init__(self) -> None:
        self.indices: dict[tuple[str, str], Occurrences] = {}
        self.tokens = 0


class KeptAnswers:
    """At most `most` tokens of answers, of all namespaces together; none is ever found from another namespace."""

    def __init__(self, most: int, width: int) -> None:
        self._part, self._width = max(most // _PARTS, 1), width
        self._parts: deque[_Part] = deque(maxlen=_PARTS)

    def __len__(self) -> int:
        """The number of tokens kept, with one between two answers."""
        return sum(part.tokens for part in self._parts)

    def add(self, namespace: tuple[str, str], answer: Sequence[int]) -> None:
        """Keep an answer; of one longer than a quarter of all, the end."""
        kept = [*answer[-(self._part - 1) :], GAP] if self._part > 1 else []
        if len(kept) <= self._width:
            return
        if not self._parts or self._parts[-1].tokens + len(kept) > self._part:
            self._parts.append(_Part())
        newest = self._parts[-1]
        newest.tokens += len(kept)
        newest.indices.setdefault(namespace, Occurrences(self._width)).extend(kept)

    def indices(self, namespace: tuple[str, str]) -> Iterator[Occurrences]:
        """The answers of a namespace, the newest first; GAP follows each."""
        for part in reversed(self._parts):
            index = part.indices.get(namespace)
            if index is not None:
                yield index
