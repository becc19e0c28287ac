"""Whoever follows what the tiers report knows what they hold."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
from tier_harness import ANY, LAYOUT, SIZE, block, keep, names_of, until

from headrace.core.block_pool import BlockPool
from headrace.core.cache_events import CacheEvents
from headrace.core.radix import RadixTree
from headrace.core.tier_record import TierRecord
from headrace.tiers.disk_tier import DiskTier
from headrace.tiers.host_tier import HostTier
from headrace.transfer.chain import first_hash, next_hash

NAMES = names_of(12)


class Follower:
    """What follows from a record."""

    def __init__(self, record: TierRecord) -> None:
        self._record = record
        self.held: dict[str, set[bytes]] = {"host": set(), "disk": set()}
        for tier, names in record.watch():
            self.held[tier].update(names)

    def read(self) -> dict[str, set[bytes]]:
        for kind, tier, names in self._record.take():
            (self.held[tier].update if kind == "stored" else self.held[tier].difference_update)(names)
        return self.held


def disk_tier(folder: Path, record: TierRecord, limit: int = 1 << 30) -> DiskTier:
    return DiskTier(folder, limit, LAYOUT, SIZE, 16, record)


@pytest.mark.parametrize("seed", range(5))
def test_a_follower_knows_what_the_host_tier_holds(seed: int) -> None:
    draw, record = random.Random(seed), TierRecord()
    tier = HostTier(5 * SIZE, record=record)
    follower = None
    for at in range(200):
        name = draw.choice(NAMES)
        if draw.random() < 0.1:
            tier.forget([name])
        elif tier.wants(name, evicted=True):
            tier.offer([name], [block(name)])
        if at == 50:
            follower = Follower(record)
        if follower is not None and draw.random() < 0.3:
            assert follower.read()["host"] == {one for one in NAMES if tier.lookup([one], ANY).blocks}  # type: ignore[union-attr]


def test_what_is_on_disk_is_reported_also_after_a_restart(tmp_path: Path) -> None:
    record = TierRecord()
    tier = disk_tier(tmp_path, record)
    keep(tier, NAMES[:3])
    follower = Follower(record)
    assert follower.held["disk"] == set(NAMES[:3])
    keep(tier, NAMES[2:6])
    assert follower.read()["disk"] == set(NAMES[:6])
    tier.forget(NAMES[:1])
    assert follower.read()["disk"] == set(NAMES[1:6])
    tier.close()
    record = TierRecord()
    tier = disk_tier(tmp_path, record)
    assert Follower(record).held["disk"] == set(NAMES[1:6])
    tier.close()


def test_what_gives_way_on_disk_is_reported(tmp_path: Path) -> None:
    record = TierRecord()
    tier = disk_tier(tmp_path, record, 6 * (SIZE + 200))
    follower = Follower(record)
    keep(tier, NAMES)
    left = {name for name in NAMES if tier.lookup([name], ANY).blocks}  # type: ignore[union-attr]
    until(lambda: follower.read()["disk"] == left)
    assert len(left) < len(NAMES)
    tier.close()


def test_other_layouts_are_not_reported(tmp_path: Path) -> None:
    other = DiskTier(tmp_path, 1 << 30, b"another-16-bytes", SIZE, 16)
    keep(other, NAMES[:2])
    other.close()
    record = TierRecord()
    tier = disk_tier(tmp_path, record)
    assert Follower(record).held["disk"] == set()
    tier.close()


def test_nothing_is_recorded_for_nobody() -> None:
    record = TierRecord()
    record.stored("disk", b"x")
    list(record.watch())
    record.unwatch()
    record.stored("disk", b"x")
    assert list(record.take()) == []


def test_changes_keep_their_order_and_come_together() -> None:
    record = TierRecord()
    list(record.watch())
    for kind, name in (("stored", b"x"), ("stored", b"y"), ("removed", b"x"), ("stored", b"x")):
        getattr(record, kind)("disk", name)
    record.stored("host", b"x")
    assert list(record.take()) == [
        ("stored", "disk", [b"x", b"y"]),
        ("removed", "disk", [b"x"]),
        ("stored", "disk", [b"x"]),
        ("stored", "host", [b"x"]),
    ]


def test_they_are_events_of_the_cache() -> None:
    record = TierRecord()
    record.add("disk", lambda: [b"x"])
    tree = RadixTree(BlockPool(4, 2))
    events = CacheEvents(tree, partial(first_hash, LAYOUT), next_hash, record)
    (run,) = events.watch().runs
    assert (run.parent, run.hashes, run.tier) == (b"", [b"x"], "disk")
    record.removed("disk", b"x")
    record.stored("host", b"y")
    batch = events.take()
    assert batch is not None
    assert [(one.kind, one.tier, one.hashes, one.parent) for one in batch.events] == [
        ("removed", "disk", [b"x"], b""),
        ("stored", "host", [b"y"], b""),
    ]
    events.unwatch()
    record.stored("host", b"z")
    assert events.take() is None
