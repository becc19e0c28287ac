"""The queue of waiting sequences, in the order in which they should run."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import islice

from headrace.core.sequence import Rank, Sequence

__all__ = ["WaitingQueue"]

WINDOW = 16
"""Sequences at the front that are compared by cached prefix."""
AHEAD = 64
"""Sequences at the front that are looked at: those that may not run before another step is committed keep nobody behind
them from running. The limits make a step's cost independent of the queue's length."""
PATIENCE = 16
"""The number of times that another sequence may overtake the first one."""


class WaitingQueue:
    """A queue ordered by priority with ageing, then arrival. Near the front, the longest cached prefix goes first;
    among the requests of one program, only if they have the same turn.

    No sequence starves: the order of two sequences never changes, only a finite number can be before one, and the first
    one is overtaken at most PATIENCE times.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Rank, Sequence]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for _, seq in self._entries)

    @property
    def first(self) -> Sequence | None:
        """The first sequence by priority and age, among those that don't wait for blocks."""
        return next(self._ready(), None)

    def push(self, seq: Sequence) -> None:
        insort(self._entries, (seq.rank, seq))

    def remove(self, seq: Sequence) -> None:
        at = bisect_left(self._entries, seq.rank, key=lambda entry: entry[0])
        assert self._entries[at][1] is seq
        del self._entries[at]

    def pick(self, committed: int, cached: Callable[[Sequence], int]) -> Sequence | None:
        """The sequence that should run next; it stays in the queue. None: none can run before another step is
        committed."""
        ahead = islice(self._ready(), AHEAD)
        window = list(islice((seq for seq in ahead if seq.hold <= committed), WINDOW))
        if not window:
            return None
        head = window[0]
        if head.passed >= PATIENCE:
            return head
        best = max((seq for seq in window if _are_equals(seq, head)), key=cached)
        if best is not head:
            head.passed += 1
        return best

    def _ready(self) -> Iterator[Sequence]:
        return (seq for _, seq in self._entries if not seq.fetching)


def _are_equals(seq: Sequence, head: Sequence) -> bool:
    """Whether a cached prefix may let a sequence overtake the first one."""
    (moment, turn, _), (first, its, _) = seq.rank, head.rank
    return seq.request.priority == head.request.priority and (moment != first or turn[:1] == its[:1])
