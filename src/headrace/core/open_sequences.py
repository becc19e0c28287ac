"""Sequences whose generation has ended and that another request may go on with, and pins of their cached prefixes.

An open sequence keeps its slot and its blocks; the request that goes on with it computes only what is new. A parked one
has given its slot back: its blocks are in the radix tree, and a pin on them keeps them from eviction while several
requests go on with it. Neither ever blocks others: the oldest is closed if a slot or a block is needed. Then the
requests that follow are ordinary ones, and find in the cache what is left there.
"""

from __future__ import annotations

from headrace.core.kv_cache import KVCache
from headrace.core.radix import RadixNode
from headrace.core.sequence import Sequence
from headrace.core.slots import Slots

__all__ = ["LEASE", "OpenSequences"]

LEASE = 60.0
"""Seconds after which an open sequence or a pin is closed, whatever its owner does."""


class OpenSequences:
    """Open sequences and pins by the ids of their requests, oldest first."""

    def __init__(self, cache: KVCache, slots: Slots) -> None:
        self._cache, self._slots = cache, slots
        self._open: dict[str, tuple[Sequence, float]] = {}
        self._pins: dict[str, tuple[RadixNode, float]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._open

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Sequence]:
        """The open sequences."""
        return [seq for seq, _ in self._open.values()]

    def pinned(self) -> list[RadixNode]:
        """The last node of each pinned path."""
        return [node for node, _ in self._pins.values()]

    def add(self, seq: Sequence, now: float) -> None:
        """Keep a sequence that has ended in its slot. It is neither scheduled nor preempted any more."""
        self._open[seq.id] = seq, now

    def may_go_on(self, seq: Sequence) -> bool:
        """Whether `go_on` would let a new sequence take over what it extends."""
        found = self._open.get(seq.request.extends)
        return found is not None and self._cache.may_take_over(found[0], seq)

    def go_on(self, seq: Sequence) -> int | None:
        """Let a new sequence take over the slot and the blocks of the open one that it extends. Returns the number of
        its tokens that need not be computed; None, and the open one is closed, if it must be queued as any other."""
        before, _ = self._open.pop(seq.request.extends)
        slot = before.slot
        computed = self._cache.take_over(before, seq)
        if computed is None:
            self._release(before)
            return None
        self._slots.store(slot, seq, computed)
        seq.resumed = True
        return computed

    def park(self, name: str, now: float) -> None:
        """Give the slot of an open sequence back and pin its blocks."""
        if name not in self._open:
            return
        seq, _ = self._open.pop(name)
        self._cache.commit_blocks(seq, seq.closed_at)
        assert seq.node is not None
        node = seq.node
        self._cache.tree.lock(node)
        self._release(seq)
        self._pins[name] = node, now

    def close(self, name: str) -> None:
        """Release a sequence or a pin. Unknown names are ignored: it may have been closed for want of memory."""
        if name in self._open:
            self._release(self._open.pop(name)[0])
        elif name in self._pins:
            self._cache.tree.unlock(self._pins.pop(name)[0])

    def free_slot(self) -> bool:
        """Close the oldest open sequence. False: there is none."""
        if not self._open:
            return False
        self.close(next(iter(self._open)))
        return True

    def free_blocks(self) -> bool:
        """Close the oldest open sequence or else the oldest pin. False: there is neither."""
        if self._pins and not self._open:
            self.close(next(iter(self._pins)))
            return True
        return self.free_slot()

    def expire(self, now: float) -> None:
        """Close what is older than its lease."""
        for held in (self._open, self._pins):
            while held:
                name, (_, since) = next(iter(held.items()))
                if since + LEASE > now:
                    break
                self.close(name)

    def clear(self) -> None:
        """Close everything; nothing of the sequences stays in the cache."""
        for seq, _ in self._open.values():
            self._release(seq, keep=False)
        for node, _ in self._pins.values():
            self._cache.tree.unlock(node)
        self._open.clear()
        self._pins.clear()

    def _release(self, seq: Sequence, keep: bool = True) -> None:
        slot = seq.slot
        self._cache.release(seq, seq.closed_at, seq.closed_at, keep)
        self._slots.release(slot)
