"""The source of blocks of other engines: two of them, connected in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from headrace.core.block_source import Arrival, Found, NoBlocks
from headrace.sampling import SamplingParams
from headrace.tiers.peer_tier import PeerTier
from headrace.transfer.chain import chain, first_hash
from headrace.transfer.connectors.connector import ConnectorSettings
from headrace.transfer.connectors.memory_connector import MemoryConnector
from headrace.transfer.identity import Identity
from headrace.types import RemoteBlocks, Request

_SIZE, _BYTES = 4, 64
_NAMES = list(chain(first_hash(b"layout-of-blocks"), ([at] * _SIZE for at in range(6))))
_BLOCKS = [bytes([at]) * _BYTES for at in range(6)]


class _Below(NoBlocks):
    """A tier below that has all blocks, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def lookup(self, hashes: Sequence[bytes], request: Request) -> Found | None:
        return Found(len(hashes))

    def fetch(self, ticket: int, hashes: Sequence[bytes], request: Request) -> None:
        self.asked.append(("fetch", ticket))

    def release(self, ticket: int) -> None:
        self.asked.append(("release", ticket))

    def offer(self, hashes: Sequence[bytes], blocks: Sequence[object]) -> None:
        self.asked.append(("offer", len(hashes)))

    def close(self) -> None:
        self.asked.append("close")


def _tier(below: NoBlocks | None = None, slots: int = 8) -> PeerTier:
    identity = Identity("ab" * 16, b"layout-of-blocks", "bfloat16", _SIZE, _BYTES)
    return PeerTier(MemoryConnector(ConnectorSettings(identity, shelf_blocks=slots)), _SIZE, _BYTES, 5, below)


@pytest.fixture
def tiers() -> Iterator[tuple[PeerTier, PeerTier]]:
    """(giving, taking)"""
    giver, taker = _tier(), _tier()
    yield giver, taker
    giver.close()
    taker.close()


def _request(giver: PeerTier | None, tokens: int = 24, patience: float = 0.0) -> Request:
    remote = None if giver is None else RemoteBlocks(giver._connector.address, tokens, 300.0, patience)
    return Request("r", (1,) * 30, SamplingParams(max_tokens=1), remote=remote)


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def _give(giver: PeerTier, count: int) -> None:
    assert [giver.gives(name) for name in _NAMES[:count]] == [True] * count
    giver.offer(_NAMES[:count], _BLOCKS[:count])
    _until(lambda: giver.stats()[0].blocks == count)


def _arrivals(tier: PeerTier, ticket: int) -> tuple[list[bytes], bool]:
    found: list[Arrival] = []

    def ended() -> bool:
        found.extend(tier.poll())
        return any(arrival.ends for arrival in found)

    _until(ended)
    assert all(arrival.ticket == ticket for arrival in found)
    return [bytes(block) for arrival in found for block in arrival.blocks], found[-1].ends


def test_what_one_gives_the_other_takes(tiers: tuple[PeerTier, PeerTier]) -> None:
    giver, taker = tiers
    _give(giver, 6)
    one = _request(giver)
    assert taker.lookup(_NAMES, one) == Found(5, 0.0, 300.0), "the most that is fetched at a time"
    taker.fetch(5, _NAMES[:5], one)
    blocks, _ = _arrivals(taker, 5)
    taker.release(5)
    assert blocks == _BLOCKS[:5]
    (stats,) = taker.stats()
    assert (stats.name, stats.hits, stats.failures) == ("memory", 5, 0)
    assert taker.lookup(_NAMES, one)[1] > 0  # type: ignore[index]


def test_a_block_that_is_there_gets_a_new_lease(tiers: tuple[PeerTier, PeerTier]) -> None:
    giver, _ = tiers
    _give(giver, 2)
    assert not giver.gives(_NAMES[0])
    assert giver.gives(_NAMES[2])
    assert not giver.gives(_NAMES[2]), "its bytes are on their way"


def test_only_so_many_tokens_are_remote(tiers: tuple[PeerTier, PeerTier]) -> None:
    found = tiers[1].lookup(_NAMES, _request(tiers[0], tokens=3 * _SIZE + 1))
    assert found is not None
    assert found.blocks == 3


def test_missing_blocks_end_the_ticket(tiers: tuple[PeerTier, PeerTier], caplog: pytest.LogCaptureFixture) -> None:
    giver, taker = tiers
    _give(giver, 2)
    for ticket in (1, 2):
        taker.fetch(ticket, _NAMES, _request(giver))
        assert _arrivals(taker, ticket) == (_BLOCKS[:2], True)
        taker.release(ticket)
    assert taker.stats()[0].failures == 2
    assert len([one for one in caplog.records if "are computed" in one.message]) == 1


def test_a_release_before_the_end(tiers: tuple[PeerTier, PeerTier]) -> None:
    giver, taker = tiers
    taker.fetch(1, _NAMES, _request(giver, patience=60.0))
    taker.release(1)
    assert list(taker.poll()) == []


def test_numbers_that_may_be_invalid_are_forgotten(tiers: tuple[PeerTier, PeerTier]) -> None:
    giver, taker = tiers
    _give(giver, 3)
    giver.forget(_NAMES[1:2])
    taker.fetch(1, _NAMES[:3], _request(giver))
    assert _arrivals(taker, 1) == (_BLOCKS[:1], True)


def test_other_requests_are_those_of_the_tier_below() -> None:
    below = _Below()
    tier = _tier(below)
    plain = _request(None)
    assert tier.lookup(_NAMES, plain) == Found(6)
    tier.fetch(3, _NAMES, plain)
    tier.release(3)
    assert tier.gives(_NAMES[0])
    tier.offer(_NAMES[:3], _BLOCKS[:3])
    _until(lambda: tier.stats()[0].blocks == 1)
    tier.close()
    assert below.asked == [("fetch", 3), ("release", 3), ("offer", 2), "close"]
