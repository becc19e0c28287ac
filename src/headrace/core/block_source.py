"""Where blocks come from and go to beside the device: host memory, a disk, another engine.

A source knows blocks by name (`transfer/chain.py`) and moves their bytes, all of them in the layout of one cache. The
core asks it before it computes a prefix, and offers it blocks that are worth keeping. Every method returns at once: a
source that waits for a disk or a network does so in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headrace.types import Request

__all__ = ["Arrival", "BlockSource", "Buffer", "Found", "NoBlocks", "TierStats"]

Buffer = Any
"""The bytes of one block: an object with the buffer protocol, C-contiguous. Its content never changes once it was
delivered or offered."""


class Found(NamedTuple):
    """What a source has of a prefix."""

    blocks: int
    """The number of blocks, from the first that was asked for on."""
    seconds: float = 0.0
    """Estimated time until the last of them has arrived."""
    patience: float = 2.0
    """Seconds after which those that have not arrived are computed instead."""


class Arrival(NamedTuple):
    """Blocks of a fetch that have arrived."""

    ticket: int
    blocks: Sequence[Buffer]
    """The next blocks, in the order of the request."""
    ends: bool
    """Nothing follows: all blocks have arrived, or the rest is missing."""


@dataclass(frozen=True, slots=True)
class TierStats:
    """Totals of one source since the engine's start, for /metrics."""

    name: str
    """`host`, `disk`, or the name of a connector."""
    blocks: int = 0
    """Blocks that it holds now."""
    bytes: int = 0
    """Bytes that it holds now."""
    hits: int = 0
    """Blocks that it has delivered."""
    misses: int = 0
    """Blocks that it was asked for and did not have."""
    stored: int = 0
    """Blocks that it has taken."""
    failures: int = 0
    """Reads and writes that failed, and blocks that did not pass their check."""
    read_seconds: float = 0.0
    write_seconds: float = 0.0


class BlockSource(Protocol):
    """One thread calls it, the engine's. No method blocks or takes longer than some microseconds per block."""

    def lookup(self, hashes: Sequence[bytes], request: Request) -> Found | None:
        """How many blocks it can deliver, from the first of `hashes` on. No effect. None: ask again at a later step;
        the sequence does not wait for the answer."""

    def fetch(self, ticket: int, hashes: Sequence[bytes], request: Request) -> None:
        """Deliver these blocks, which `lookup` has found, by `poll`. Tickets are unique. Blocks that have vanished
        since are missing."""

    def poll(self) -> Sequence[Arrival]:
        """What has arrived since the last call. The last arrival of every ticket that was not released has `ends`."""

    def release(self, ticket: int) -> None:
        """Stop delivering a ticket. Called once for every ticket, after its end, too."""

    def wants(self, name: bytes, evicted: bool) -> bool:
        """True if it would keep this block. `evicted`: it is about to leave the cache; otherwise a second request has
        used it."""

    def offer(self, hashes: Sequence[bytes], blocks: Sequence[Buffer]) -> None:
        """Keep these blocks, as far as there is room. They are valid: a step that did not fail has computed them."""

    def forget(self, hashes: Sequence[bytes]) -> None:
        """Never deliver these blocks again: their numbers may be invalid."""

    def stats(self) -> tuple[TierStats, ...]:
        """Totals, one entry per tier."""

    def close(self) -> None:
        """Release everything. Blocks that were offered may be lost, unless a tier promises more."""


class NoBlocks:
    """A `BlockSource` that has nothing and keeps nothing."""

    def __init__(self) -> None:
        self._asked: list[int] = []

    def lookup(self, hashes: Sequence[bytes], request: Request) -> Found | None:
        return Found(0)

    def fetch(self, ticket: int, hashes: Sequence[bytes], request: Request) -> None:
        self._asked.append(ticket)

    def poll(self) -> Sequence[Arrival]:
        asked, self._asked = self._asked, []
        return [Arrival(ticket, (), True) for ticket in asked]

    def release(self, ticket: int) -> None:
        pass

    def wants(self, name: bytes, evicted: bool) -> bool:
        return False

    def offer(self, hashes: Sequence[bytes], blocks: Sequence[Buffer]) -> None:
        pass

    def forget(self, hashes: Sequence[bytes]) -> None:
        pass

    def stats(self) -> tuple[TierStats, ...]:
        return ()

    def close(self) -> None:
        pass
