"""Blocks in the host's memory, and what lies below it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile

from headrace.core.block_source import Arrival, BlockSource, Buffer, Found, NoBlocks, TierStats
from headrace.core.tier_record import TierRecord
from headrace.types import Request

__all__ = ["HostTier"]


class HostTier:
    """A `BlockSource`: up to `limit` bytes, the least recently used go first, and go to the source below.

    Of one prefix some blocks may be here and the others below; what comes from there is kept here.
    """

    def __init__(self, limit: int, below: BlockSource | None = None, record: TierRecord | None = None) -> None:
        """`record`: is told what comes and goes."""
        self._limit, self._below = limit, below or NoBlocks()
        self._record = record or TierRecord()
        self._record.add("host", lambda: self._blocks)
        self._blocks: OrderedDict[bytes, Buffer] = OrderedDict()
        self._bytes = 0
        self._arrivals: list[Arrival] = []
        self._fetching: dict[int, list[tuple[bytes, Buffer | None]]] = {}
        """Ticket → what was not delivered yet, in order; None for a block that must come from below."""
        self._below_too: set[int] = set()
        """Tickets that the source below has got, too."""
        self._hits = self._misses = self._stored = 0

    def lookup(self, hashes: Sequence[bytes], request: Request) -> Found | None:
        known = sum(1 for _ in takewhile(self._blocks.__contains__, hashes))
        seconds, patience = 0.0, Found(0).patience
        while known < len(hashes):
            found = self._below.lookup(hashes[known:], request)
            if found is None and not known:
                return None
            if found is None or not found.blocks:
                break
            seconds, patience = seconds + found.seconds, max(patience, found.patience)
            known += found.blocks
            known += sum(1 for _ in takewhile(self._blocks.__contains__, hashes[known:]))
        return Found(known, seconds, patience)

    def fetch(self, ticket: int, hashes: Sequence[bytes], request: Request) -> None:
        wanted = [(name, self._blocks.get(name)) for name in hashes]
        rest = [name for name, held in wanted if held is None]
        for name, held in wanted:
            if held is not None:
                self._blocks.move_to_end(name)
        self._hits += len(wanted) - len(rest)
        self._misses += len(rest)
        self._fetching[ticket] = wanted
        self._arrivals.append(Arrival(ticket, self._ready(ticket), not rest))
        if rest:
            self._below_too.add(ticket)
            self._below.fetch(ticket, rest, request)

    def poll(self) -> Sequence[Arrival]:
        found, self._arrivals = self._arrivals, []
        for arrival in self._below.poll():
            if arrival.ticket not in self._fetching:
                continue
            blocks: list[Buffer] = []
            for block in arrival.blocks:
                name, _ = self._fetching[arrival.ticket].pop(0)
                self._keep(name, block)
                blocks += [block, *self._ready(arrival.ticket)]
            found.append(Arrival(arrival.ticket, blocks, arrival.ends))
        return found

    def release(self, ticket: int) -> None:
        self._fetching.pop(ticket, None)
        if ticket in self._below_too:
            self._below_too.remove(ticket)
            self._below.release(ticket)
        self._arrivals = [arrival for arrival in self._arrivals if arrival.ticket != ticket]

    def wants(self, name: bytes, evicted: bool) -> bool:
        held = self._blocks.get(name)
        if held is None:
            return True
        self._blocks.move_to_end(name)
        if not evicted and self._below.wants(name, evicted=False):
            self._below.offer([name], [held])
        return False

    def offer(self, hashes: Sequence[bytes], blocks: Sequence[Buffer]) -> None:
        for name, block in zip(hashes, blocks, strict=True):
            self._stored += name not in self._blocks
            # A row of a larger array would keep all of it.
            self._keep(name, bytes(block))

    def forget(self, hashes: Sequence[bytes]) -> None:
        for name in hashes:
            held = self._blocks.pop(name, None)
            if held is not None:
                self._bytes -= memoryview(held).nbytes
                self._record.removed("host", name)
        self._below.forget(hashes)

    def stats(self) -> tuple[TierStats, ...]:
        own = TierStats("host", len(self._blocks), self._bytes, self._hits, self._misses, self._stored)
        return (own, *self._below.stats())

    def close(self) -> None:
        self._blocks.clear()
        self._below.close()

    def _ready(self, ticket: int) -> list[Buffer]:
        """Take the next blocks of a ticket that need not come from below."""
        waiting, blocks = self._fetching[ticket], list[Buffer]()
        while waiting and waiting[0][1] is not None:
            blocks.append(waiting.pop(0)[1])
        return blocks

    def _keep(self, name: bytes, block: Buffer) -> None:
        if name in self._blocks:
            return
        self._blocks[name] = block
        self._bytes += memoryview(block).nbytes
        self._record.stored("host", name)
        while self._bytes > self._limit:
            last, old = self._blocks.popitem(last=False)
            self._bytes -= memoryview(old).nbytes
            self._record.removed("host", last)
            if self._below.wants(last, evicted=True):
                self._below.offer([last], [old])
