"""The waiting sequences, best first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from headrace.core.sequence import Sequence

__all__ = ["WaitingQueue"]

WINDOW = 16
"""How far down the order a longer cached prefix is looked for: what makes a step's cost independent of the queue's length."""
PATIENCE = 16
"""How often the first in order lets another pass."""


class WaitingQueue:
    """Ordered by priority with ageing, then arrival; near the front, the longest cached prefix goes first.

    Nobody starves: the order of two sequences never changes, only finitely many can stand before one, and whoever is first
    is passed at most PATIENCE times.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[2] for entry in self._entries)

    @property
    def first(self) -> Sequence | None:
        """The first in order, by priority and age alone."""
        return self._entries[0][2] if self._entries else None

    def push(self, seq: Sequence) -> None:
        insort(self._entries, (*seq.rank, seq))

    def remove(self, seq: Sequence) -> None:
        at = bisect_left(self._entries, seq.rank)
        assert self._entries[at][2] is seq
        del self._entries[at]

    def pick(self, committed: int, cached: Callable[[Sequence], int]) -> Sequence | None:
        """Who should run next; stays in the queue. None: nobody can before another step is committed."""
        window = [seq for _, _, seq in self._entries[:WINDOW] if seq.hold <= committed]
        if not window:
            return None
        head = window[0]
        if head.passed >= PATIENCE:
            return head
        best = max((seq for seq in window if seq.request.priority == head.request.priority), key=cached)
        if best is not head:
            head.passed += 1
        return best
