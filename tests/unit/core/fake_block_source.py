"""A source of blocks in a dictionary that delivers late, in part, twice, never, or raises, as a seed decides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import takewhile

from headrace.core.block_source import Arrival, Buffer, Found, TierStats
from headrace.core.fetches import Tiers
from headrace.transfer.chain import first_hash, next_hash
from headrace.types import Request

LAYOUT = b"a layout"


def tiers_of(source: FakeSource, block_size: int) -> Tiers:
    return Tiers(source, lambda adapter, salt: first_hash(LAYOUT, adapter, salt), next_hash, 8 * block_size)


class FakeSource:
    """`faults`: the share of calls that go wrong in some way."""

    def __init__(self, seed: int = 0, faults: float = 0.0, delay: int = 0) -> None:
        self.rng, self.faults, self.delay = random.Random(seed), faults, delay
        self.kept: dict[bytes, bytes] = {}
        self.tickets: dict[int, list[bytes]] = {}
        """What is still to be delivered."""
        self.wait: dict[int, int] = {}
        self.asked: list[int] = []
        self.released: list[int] = []
        self.delivered = 0
        self.seconds, self.patience = 0.0, 8.0
        self.closed = False

    def faulty(self) -> bool:
        return self.rng.random() < self.faults

    def lookup(self, hashes: Sequence[bytes], request: Request) -> Found | None:
        assert hashes
        if self.faulty():
            if self.faulty():
                raise OSError("the index cannot be read")
            return None
        count = next((at for at, name in enumerate(hashes) if name not in self.kept), len(hashes))
        return Found(count, self.seconds, patience=self.patience)

    def fetch(self, ticket: int, hashes: Sequence[bytes], request: Request) -> None:
        assert ticket not in self.tickets
        assert ticket not in self.released
        self.asked.append(ticket)
        if self.faulty():
            raise OSError("the disk is gone")
        self.tickets[ticket], self.wait[ticket] = list(hashes), self.delay

    def poll(self) -> Sequence[Arrival]:
        found = []
        for ticket, names in list(self.tickets.items()):
            if self.wait[ticket] > 0:
                self.wait[ticket] -= 1
                continue
            if self.faulty():
                found.append(self.spoilt(ticket))
                continue
            count = self.rng.randint(0, len(names)) if self.delay else len(names)
            blocks = [self.kept[name] for name in takewhile(self.kept.__contains__, names[:count])]
            del names[:count]
            self.delivered += len(blocks)
            ends = not names or len(blocks) < count
            found.append(Arrival(ticket, blocks, ends))
            if ends:
                self.tickets.pop(ticket)
        if self.faulty() and not found:
            raise OSError("a thread has died")
        return found

    def spoilt(self, ticket: int) -> Arrival:
        how = self.rng.randrange(4)
        if how == 0:
            self.wait[ticket] = 10**9  # never
            return Arrival(10**6 + ticket, [b"nobody asked for this"], True)
        self.tickets.pop(ticket)
        return Arrival(ticket, [b"too short"] if how == 1 else [], True)

    def release(self, ticket: int) -> None:
        assert ticket not in self.released, "each ticket is released once"
        self.released.append(ticket)
        self.tickets.pop(ticket, None)

    def wants(self, name: bytes, evicted: bool) -> bool:
        return name not in self.kept and not self.faulty()

    def offer(self, hashes: Sequence[bytes], blocks: Sequence[Buffer]) -> None:
        for name, block in zip(hashes, blocks, strict=True):
            data = bytes(block)
            assert self.kept.setdefault(name, data) == data, "one name, two contents"

    def forget(self, hashes: Sequence[bytes]) -> None:
        for name in hashes:
            self.kept.pop(name, None)

    def stats(self) -> tuple[TierStats, ...]:
        return (TierStats("fake", len(self.kept)),)

    def close(self) -> None:
        self.closed = True

    def idle(self) -> None:
        """The leak check: every ticket was released."""
        assert sorted(self.released) == sorted(self.asked)
        assert not self.tickets
