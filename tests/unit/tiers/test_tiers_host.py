"""The host tier, alone and above a disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tier_harness import ANY, SIZE, block, disk, fetch, found, names_of, until

from headrace.tiers.host_tier import HostTier

NAMES = names_of(12)


def offered(tier: HostTier, names: list[bytes]) -> None:
    for name in names:
        assert tier.wants(name, evicted=True)
        tier.offer([name], [np.frombuffer(block(name), np.uint8)])


def test_what_is_kept_comes_back() -> None:
    tier = HostTier(100 * SIZE)
    offered(tier, NAMES[:5])
    assert found(tier, NAMES) == 5
    assert fetch(tier, 1, NAMES[:5]) == [block(name) for name in NAMES[:5]]
    (stats,) = tier.stats()
    assert (stats.name, stats.blocks, stats.bytes, stats.hits) == ("host", 5, 5 * SIZE, 5)


def test_the_least_recently_used_go_first() -> None:
    tier = HostTier(4 * SIZE)
    offered(tier, NAMES[:4])
    fetch(tier, 1, NAMES[:1])
    offered(tier, NAMES[4:5])
    assert [found(tier, [name]) for name in NAMES[:5]] == [1, 0, 1, 1, 1]


def test_what_leaves_goes_to_the_disk_and_comes_back(tmp_path: Path) -> None:
    below = disk(tmp_path)
    tier = HostTier(4 * SIZE, below)
    offered(tier, NAMES[:8])
    until(lambda: below.stats()[0].stored == 4)
    assert found(tier, NAMES) == 8
    assert fetch(tier, 1, NAMES[:8]) == [block(name) for name in NAMES[:8]]
    assert [stats.name for stats in tier.stats()] == ["host", "disk"]
    tier.close()


def test_a_prefix_may_begin_here_and_end_on_the_disk(tmp_path: Path) -> None:
    below = disk(tmp_path)
    below.offer(NAMES[2:5], [block(name) for name in NAMES[2:5]])
    until(lambda: below.stats()[0].stored == 3)
    tier = HostTier(100 * SIZE, below)
    offered(tier, NAMES[:2])
    assert found(tier, NAMES) == 5
    assert fetch(tier, 1, NAMES[:5]) == [block(name) for name in NAMES[:5]]
    below.forget(NAMES[2:5])
    assert found(tier, NAMES) == 5, "what came from the disk was kept"
    tier.close()


def test_a_block_that_is_used_again_is_written_through(tmp_path: Path) -> None:
    below = disk(tmp_path)
    tier = HostTier(100 * SIZE, below)
    offered(tier, NAMES[:1])
    assert not tier.wants(NAMES[0], evicted=False)
    until(lambda: below.stats()[0].stored == 1)
    tier.close()


def test_what_is_gone_since_the_lookup_is_missing() -> None:
    tier = HostTier(100 * SIZE)
    offered(tier, NAMES[:3])
    tier.forget(NAMES[1:2])
    tier.fetch(1, NAMES[:3], ANY)
    found = [arrival for _ in range(3) for arrival in tier.poll()]
    assert [bytes(one) for arrival in found for one in arrival.blocks] == [block(NAMES[0])]
