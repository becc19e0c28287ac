"""Waiting sequences whose prefixes are fetched from beside the device, and the blocks that go there.

A sequence whose next blocks a source has stays in the queue, without a slot, until they have arrived or are given up;
others run meanwhile. Its blocks are reserved, and the place in the tree where they belong is locked. What arrives
enters the tree as if the next step computed it: that step writes it first (`StepPlan.loads`), so that it is shared from
then on like any other block. What does not arrive is computed, as if nothing had been found. No fetch outlives its
deadline, and nothing of a source can fail a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from headrace.core.block_names import BlockNames
from headrace.core.block_source import Arrival, BlockSource, Buffer, Found, NoBlocks, TierStats
from headrace.core.fetch_cost import ComputeRate
from headrace.core.given_blocks import GivenBlocks
from headrace.core.kv_cache import KVCache
from headrace.core.radix import BlockKey, RadixNode
from headrace.core.sequence import Sequence
from headrace.core.tier_record import TierRecord
from headrace.types import StepPlan, StepResult

__all__ = ["Fetches", "Tiers"]

_log = logging.getLogger(__name__)
T = TypeVar("T")
_SHARE = 2
"""Fetches reserve at most one block in so many."""
_LOADS, _STORES, _LOOKS = 32, 16, 64
"""Most blocks that a step writes while sequences run; that it reads because they were used again; and how many of those
it looks at."""
_ASKED = 16
"""Most sequences that a step asks about."""
_JUDGED = 60.0
"""Seconds after which a source that was too slow is tried again."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """What keeps blocks beside the device, and how blocks are named and sized."""

    source: BlockSource
    first_name: Callable[[str, str], bytes]
    """The name before the first block of (adapter, salt)."""
    next_name: Callable[[bytes, BlockKey], bytes]
    """The name of a block, from that of its parent and its tokens."""
    block_bytes: int
    """Bytes of one block, as the device reads and writes it."""
    layout_id: bytes = b""
    """Names are of blocks in this layout."""
    record: TierRecord | None = None
    """What `source` holds, for those who watch."""
    gives: Callable[[bytes], bool] = field(default=lambda name: False)
    """Told of each block that another engine will fetch (`Request.gives_blocks`); returns whether it needs the bytes,
    which are offered to the source then."""


@dataclass(slots=True, eq=False)
class _Fetch:
    """Blocks on their way."""

    ticket: int
    names: list[bytes]
    keys: list[BlockKey]
    blocks: list[int]
    """Reserved for those that have not arrived, in order."""
    node: RadixNode
    """Locked: the end of what is in the tree."""
    deadline: float
    waiters: list[Sequence] = field(default_factory=list)
    arrived: int = 0
    received: list[Buffer] = field(default_factory=list)
    """What has come and waits for its turn to be written."""
    ends: bool = False
    """Nothing more will come."""


class Fetches:
    """The core's side of a `BlockSource`. Called by the scheduler alone."""

    def __init__(self, cache: KVCache, tiers: Tiers | None) -> None:
        """Without tiers, or without a cache of prefixes, nothing is ever fetched."""
        self._cache = cache
        self._active = tiers is not None and cache.caching
        if tiers is None:
            tiers = Tiers(NoBlocks(), lambda adapter, salt: b"", lambda parent, tokens: b"", 0)
        self._source, self._block_bytes = tiers.source, tiers.block_bytes
        self._names = BlockNames(cache.pool, tiers.first_name, tiers.next_name)
        if self._active:
            cache.names = self._names
        self._given = GivenBlocks(cache.tree, self._names, cache.block_size, tiers.gives)
        self.rate = ComputeRate()
        self._new: list[Sequence] = []
        """Waiting sequences that the source has not been asked about."""
        self._fetches: dict[int, _Fetch] = {}
        self._by_name: dict[bytes, _Fetch] = {}
        """Blocks on their way."""
        self._loads: list[tuple[int, Buffer]] = []
        self._storing: dict[bytes, int] = {}
        """Blocks that launched steps read for the source → the step."""
        self._stored: dict[int, list[bytes]] = {}
        """Step → what its result brings."""
        self._pays, self._judged = True, 0.0
        """The last answer of the source was sooner than computing: what would not be fetched need not be stored."""
        self._warned: set[str] = set()
        self._ticket = 0

    # A sequence

    def add(self, seq: Sequence) -> None:
        """A sequence has entered the queue."""
        if self._active:
            self._new.append(seq)
            self._given.add(seq)

    def remove(self, seq: Sequence) -> None:
        """A sequence has ended. If no other waits for the blocks that it waits for, they are given up."""
        self._given.end(seq)
        if seq in self._new:
            self._new.remove(seq)
        if not seq.fetching:
            return
        seq.fetching = False
        fetch = next(one for one in self._fetches.values() if seq in one.waiters)
        fetch.waiters.remove(seq)
        if not fetch.waiters:
            self._end(fetch, again=False)

    @property
    def waiting(self) -> int:
        """Sequences that wait for blocks."""
        return sum(len(fetch.waiters) for fetch in self._fetches.values())

    # A step

    def begin(self, now: float, step: int, running: int) -> None:
        """Before a step is planned: take what has arrived, end what is late, ask about new sequences. `running`: the
        number of running sequences, for each of which a block stays free."""
        if not self._active:
            return
        self._names.launched = step - 1
        self.rate.clock(now)
        self._pays = self._pays or now > self._judged + _JUDGED
        nothing: Iterable[Arrival] = ()
        for arrival in self._safely("poll", self._source.poll, nothing):
            self._receive(arrival)
        room = _LOADS if running else self._cache.pool.total
        for fetch in list(self._fetches.values()):
            room -= self._insert(fetch, step, max(room, 0))
            if fetch.ends and not fetch.received:
                self._end(fetch, again=not fetch.blocks)
            elif now >= fetch.deadline:
                self._warn("a fetch was late: its blocks are computed")
                self._end(fetch, again=False)
        asked, later = self._new[:_ASKED], self._new[_ASKED:]
        self._new = later
        self._new[:0] = [seq for seq in asked if self._ask(seq, now, running)]

    def take(self, plan: StepPlan) -> None:
        """Give a new plan what it must read for the source, and write."""
        if not self._active:
            return
        names = self._names
        evicted = names.evicted if self._pays else []
        chosen = [(block, name) for block, name in evicted if self._wants(name, evicted=True)]
        names.evicted.clear()
        for _ in range(min(_LOOKS, len(names.reused))):
            reused = names.next_reused()
            if reused is not None and self._pays and self._wants(reused[1], evicted=False):
                chosen.append(reused)
                if len(chosen) >= _STORES:
                    break
        chosen += self._given.take()
        chosen = list({name: (block, name) for block, name in chosen}.values())
        if chosen:
            plan.stores = np.array([block for block, _ in chosen], np.int32)
            self._stored[plan.step] = [name for _, name in chosen]
            self._storing |= dict.fromkeys(self._stored[plan.step], plan.step)
        if self._loads:
            plan.loads, self._loads = tuple(dict(self._loads).items()), []
        self.rate.launched(plan.step, plan.num_tokens)

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Offer the blocks that a step has read."""
        if not self._active:
            return
        self.rate.committed(plan.step, now)
        hashes = self._stored.pop(plan.step, None)
        if hashes is None:
            return
        for name in hashes:
            self._storing.pop(name, None)
        if result.stored is not None:
            blocks = list(result.stored[: len(hashes)])
            self._safely("offer", lambda: self._source.offer(hashes, blocks), None)

    def due(self) -> bool:
        """True if a step is needed to read blocks, although it may have nothing to compute."""
        return self._given.due()

    # Failures

    def fail(self, step: int) -> None:
        """Blocks that `step` or a later one should have filled are lost: end all fetches, and offer nothing that was
        read since. The sequences that wait are asked about again."""
        for late in [number for number in self._stored if number >= step]:
            for name in self._stored.pop(late):
                self._storing.pop(name, None)
        self.rate.failed(step)
        self._loads.clear()
        self._given.lost()
        self.reset()

    def reset(self) -> None:
        """The tree is about to lose its blocks: end all fetches."""
        for fetch in list(self._fetches.values()):
            self._end(fetch, again=True)
        self._names.reset()

    def give_way(self) -> bool:
        """Give up the latest fetch, because running sequences need its blocks. False: there is none."""
        if not self._fetches:
            return False
        self._end(self._fetches[max(self._fetches)], again=False)
        return True

    def forget(self, seq: Sequence) -> None:
        """The blocks of a sequence may hold invalid numbers: the source must not deliver them any more."""
        if not self._active:
            return
        hashes = list(self._names.chain(seq, len(seq.tokens) // self._cache.block_size))
        for step, names in list(self._stored.items()):
            self._stored[step] = []
            for name in names:
                self._storing.pop(name, None)
        self._safely("forget", lambda: self._source.forget(hashes), None)

    # Inspection

    def locked(self) -> list[RadixNode]:
        """The nodes that fetches lock, one for each."""
        return [fetch.node for fetch in self._fetches.values()]

    def reserved(self) -> list[int]:
        """Blocks that are reserved for what has not arrived."""
        return [block for fetch in self._fetches.values() for block in fetch.blocks]

    def stats(self) -> tuple[TierStats, ...]:
        return self._safely("stats", self._source.stats, ())

    # Parts

    def _ask(self, seq: Sequence, now: float, running: int) -> bool:
        """Ask the source about a waiting sequence, and begin to fetch what is worth it. True: ask again."""
        size, tree = self._cache.block_size, self._cache.tree
        if seq.slot >= 0:
            return False
        if self._room(running) <= 0:
            return True
        count = seq.reusable // size
        root = tree.find(seq.namespace)
        depth = 0 if root is None else tree.match_prefix(root, seq.block_keys(size), 0, count).depth
        if depth >= count:
            return False
        names = self._names.chain(seq, count)[depth:count]
        before = self._by_name.get(names[0])
        if before is not None:
            before.waiters.append(seq)
            seq.fetching = True
            return False
        missing: Found | None = Found(0)
        found = self._safely("lookup", lambda: self._source.lookup(names, seq.request), missing)
        if found is None:
            return True
        if found.blocks > 0:
            self._pays, self._judged = self.rate.slower_than(found.seconds, found.blocks * size), now
        blocks = min(found.blocks, len(names), self._room(running))
        if blocks > 0 and self._pays:
            self._begin(seq, depth, names[:blocks], now + found.patience, running)
        return False

    def _room(self, running: int) -> int:
        """The number of blocks that may be reserved now."""
        share = self._cache.pool.total // _SHARE - sum(len(fetch.blocks) for fetch in self._fetches.values())
        return min(share, self._cache.available - running)

    def _begin(self, seq: Sequence, depth: int, names: list[bytes], deadline: float, running: int) -> None:
        cache, tree = self._cache, self._cache.tree
        keys = seq.block_keys(cache.block_size)
        # What the tree has of the prefix is locked before other blocks are evicted for the rest.
        node = tree.split(tree.match_prefix(tree.root(seq.namespace), keys, 0, depth))
        tree.lock(node)
        count = min(len(names), cache.available - running)
        if count <= 0:
            tree.unlock(node)
            return
        self._ticket += 1
        blocks = [cache.allocate() for _ in range(count)]
        fetch = _Fetch(self._ticket, names[:count], keys[depth : depth + count], blocks, node, deadline, [seq])
        self._fetches[self._ticket] = fetch
        self._by_name |= dict.fromkeys(fetch.names, fetch)
        seq.fetching = True

        def ask() -> bool:
            self._source.fetch(fetch.ticket, fetch.names, seq.request)
            return True

        fetch.ends = not self._safely("fetch", ask, False)

    def _receive(self, arrival: Arrival) -> None:
        fetch = self._fetches.get(arrival.ticket)
        if fetch is None or fetch.ends:
            return
        for block in arrival.blocks:
            size = memoryview(block).nbytes
            if size != self._block_bytes or len(fetch.received) >= len(fetch.blocks):
                self._warn(f"a source delivered a block of {size} bytes, expected are {self._block_bytes}")
                fetch.ends = True
                return
            fetch.received.append(block)
        fetch.ends = arrival.ends

    def _insert(self, fetch: _Fetch, step: int, most: int) -> int:
        """Put received blocks in the tree, which `step` fills; returns their number."""
        tree, pool = self._cache.tree, self._cache.pool
        taken = fetch.received[:most]
        del fetch.received[:most]
        for buffer in taken:
            key, name, block = fetch.keys[fetch.arrived], fetch.names[fetch.arrived], fetch.blocks.pop(0)
            if key in fetch.node.children:
                # Another sequence has computed it meanwhile.
                node = tree.split(tree.match_prefix(fetch.node, [key], 0, 1))
                tree.lock(node, above=fetch.node)
                fetch.node = node
                pool.release([block])
            else:
                pool.filled_by[block] = step
                self._names.of_block[block] = name
                fetch.node = tree.insert(fetch.node, key, block)
                self._loads.append((block, buffer))
            fetch.arrived += 1
            self._by_name.pop(name, None)
        return len(taken)

    def _end(self, fetch: _Fetch, again: bool) -> None:
        """End a fetch: its sequences go on. `again`: they are asked about again, for what follows."""
        del self._fetches[fetch.ticket]
        for name in fetch.names[fetch.arrived :]:
            self._by_name.pop(name, None)
        self._cache.pool.release(fetch.blocks)
        fetch.blocks = []
        self._cache.tree.unlock(fetch.node)
        for seq in fetch.waiters:
            seq.fetching = False
            if again:
                self._new.append(seq)
        self._safely("release", lambda: self._source.release(fetch.ticket), None)

    def _wants(self, name: bytes, evicted: bool) -> bool:
        return name not in self._storing and self._safely("wants", lambda: self._source.wants(name, evicted), False)

    def _safely(self, what: str, call: Callable[[], T], otherwise: T) -> T:
        """What a method of the source gives; `otherwise` if it raises."""
        try:
            return call()
        except Exception as error:
            self._warn(f"{what} of {type(self._source).__name__} failed with {type(error).__name__}: {error}")
            return otherwise

    def _warn(self, message: str) -> None:
        if message not in self._warned and len(self._warned) < 100:
            self._warned.add(message)
            _log.warning("KV tiers: %s", message)
