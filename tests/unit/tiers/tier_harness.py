"""Blocks, tickets and waiting for tests of tiers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.core.block_source import BlockSource
from headrace.tiers.disk_tier import DiskTier
from headrace.transfer.chain import chain, first_hash
from headrace.types import Request, SamplingParams

LAYOUT, SIZE = b"layout-of-16-byt", 512
ANY = Request("r", (1,), SamplingParams(max_tokens=1))


def names_of(count: int, salt: str = "") -> list[bytes]:
    return list(chain(first_hash(LAYOUT, "", salt), ((at,) for at in range(count))))


def block(name: bytes, size: int = SIZE) -> bytes:
    """The content of a block: it tells its name."""
    return (name * (size // len(name) + 1))[:size]


def disk(folder: Path, limit: int = 1 << 30, layout: bytes = LAYOUT, size: int = SIZE) -> DiskTier:
    return DiskTier(folder, limit, layout, size, 16)


def until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait for a state of another thread."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.001)


def keep(tier: BlockSource, names: Sequence[bytes]) -> None:
    """Offer blocks, and wait until they are stored."""
    for name in names:
        before = tier.stats()[-1].stored
        if tier.wants(name, evicted=False):
            tier.offer([name], [block(name)])
            until(lambda: tier.stats()[-1].stored > before)  # noqa: B023


def fetch(tier: BlockSource, ticket: int, names: Sequence[bytes]) -> list[bytes]:
    """All that arrives."""
    found: list[bytes] = []
    ends = False

    def arrived() -> bool:
        nonlocal ends
        for arrival in tier.poll():
            assert arrival.ticket == ticket
            assert not ends
            found.extend(bytes(one) for one in arrival.blocks)
            ends = arrival.ends
        return ends

    tier.fetch(ticket, names, ANY)
    until(arrived)
    tier.release(ticket)
    return found


def found(tier: BlockSource, names: Sequence[bytes]) -> int:
    answer = tier.lookup(names, ANY)
    assert answer is not None
    return answer.blocks
