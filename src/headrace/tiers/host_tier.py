"""Blocks in the host's memory, and what lies below it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile

from headrace.core.block_source import Arrival, BlockSource, Buffer, Found, NoBlocks, TierStats
from headrace.types import Request

__all__ = ["HostTier"]


class HostTier:
    """A `BlockSource`: up to `limit` bytes, the least recently used go first, and go to the source below.

    A prefix may begin here and end below: `lookup` and `fetch` go on there, and what comes from there is kept here.
    """

    def __init__(self, limit: int, below: BlockSource | None = None) -> None:
        self._limit, self._below = limit, below or NoBlocks()
        self._blocks: OrderedDict[bytes, Buffer] = OrderedDict()
        self._bytes = 0
        self._arrivals: list[Arrival] = []
        self._fetching: dict[int, list[bytes]] = {}
        """Ticket → the names that the source below has not delivered yet."""
        self._hits = self._misses = self._stored = 0

    def lookup(self, hashes: Sequence[bytes], request: Request) -> Found | None:
        here = sum(1 for _ in takewhile(self._blocks.__contains__, hashes))
        if here == len(hashes):
            return Found(here)
        found = self._below.lookup(hashes[here:], request)
        if found is None:
            return None if not here else Found(here)
        return found._replace(blocks=here + found.blocks)

    def fetch(self, ticket: int, hashes: Sequence[bytes], request: Request) -> None:
        blocks = []
        for name in takewhile(self._blocks.__contains__, hashes):
            self._blocks.move_to_end(name)
            blocks.append(self._blocks[name])
        rest = list(hashes[len(blocks) :])
        self._hits += len(blocks)
        self._misses += len(rest)
        self._arrivals.append(Arrival(ticket, blocks, not rest))
        if rest:
            self._fetching[ticket] = rest
            self._below.fetch(ticket, rest, request)

    def poll(self) -> Sequence[Arrival]:
        found, self._arrivals = self._arrivals, []
        for arrival in self._below.poll():
            names = self._fetching.get(arrival.ticket)
            if names is not None:
                for name, block in zip(names, arrival.blocks, strict=False):
                    self._keep(name, block)
                del names[: len(arrival.blocks)]
                found.append(arrival)
        return found

    def release(self, ticket: int) -> None:
        if self._fetching.pop(ticket, None) is not None:
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
            self._bytes -= 0 if held is None else memoryview(held).nbytes
        self._below.forget(hashes)

    def stats(self) -> tuple[TierStats, ...]:
        own = TierStats("host", len(self._blocks), self._bytes, self._hits, self._misses, self._stored)
        return (own, *self._below.stats())

    def close(self) -> None:
        self._blocks.clear()
        self._below.close()

    def _keep(self, name: bytes, block: Buffer) -> None:
        if name in self._blocks:
            return
        self._blocks[name] = block
        self._bytes += memoryview(block).nbytes
        while self._bytes > self._limit:
            last, old = self._blocks.popitem(last=False)
            self._bytes -= memoryview(old).nbytes
            if self._below.wants(last, evicted=True):
                self._below.offer([last], [old])
