"""Tells those who watch the cache which blocks the tiers beside the device take and give up.

A tier's blocks have no order: one may go before those that follow it in its prefix, and come back after them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

__all__ = ["TierRecord"]

_RUN = 4096
"""Most names together."""
Names = list[bytes]


class TierRecord:
    """Nothing is recorded while nobody watches. Any thread may call `stored` and `removed`; the others are the engine
    thread's."""

    def __init__(self) -> None:
        self._tiers: dict[str, Callable[[], Iterable[bytes]]] = {}
        self._changes: deque[tuple[str, str, bytes]] = deque()
        self._watched = False

    def add(self, tier: str, names: Callable[[], Iterable[bytes]]) -> None:
        """A tier; `names` are those of the blocks that it holds now, and may be called while they change."""
        self._tiers[tier] = names

    def stored(self, tier: str, name: bytes) -> None:
        """Called when a tier can deliver the block."""
        if self._watched:
            self._changes.append(("stored", tier, name))

    def removed(self, tier: str, name: bytes) -> None:
        if self._watched:
            self._changes.append(("removed", tier, name))

    def watch(self) -> Iterator[tuple[str, Names]]:
        """Record from now on; yields (tier, names of blocks) of what is held now. A change that comes meanwhile may be
        part of both: the last one of a block is right."""
        self._watched = True
        self._changes.clear()
        for tier, names in self._tiers.items():
            found = list(names())
            for at in range(0, len(found), _RUN):
                yield tier, found[at : at + _RUN]

    def unwatch(self) -> None:
        self._watched = False
        self._changes.clear()

    def take(self) -> Iterator[tuple[str, str, Names]]:
        """(`stored` or `removed`, tier, names) since the last call, in order."""
        run: tuple[str, str, Names] | None = None
        for _ in range(len(self._changes)):
            kind, tier, name = self._changes.popleft()
            if run is not None and run[:2] == (kind, tier) and len(run[2]) < _RUN:
                run[2].append(name)
                continue
            if run is not None:
                yield run
            run = kind, tier, [name]
        if run is not None:
            yield run
