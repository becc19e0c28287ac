"""The disk tier: what it keeps, what it never delivers, and what its faults cost."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tier_harness import LAYOUT, SIZE, block, disk, fetch, found, keep, names_of, until

from headrace.tiers import disk_tier
from headrace.tiers.block_folder import BlockFolder, StoredBlock
from headrace.transfer.sealed import HEADER_BYTES

NAMES = names_of(20)
FILE = SIZE + HEADER_BYTES


def path_of(folder: Path, name: bytes, layout: bytes = LAYOUT) -> Path:
    return BlockFolder(folder, layout).path(layout.hex(), name)


def test_what_is_kept_comes_back_in_order(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    keep(tier, NAMES)
    assert found(tier, NAMES) == 20
    assert fetch(tier, 1, NAMES) == [block(name) for name in NAMES]
    (stats,) = tier.stats()
    assert (stats.name, stats.blocks, stats.bytes, stats.hits, stats.stored) == ("disk", 20, 20 * FILE, 20, 20)
    assert stats.read_seconds > 0 < stats.write_seconds
    tier.close()


def test_it_survives_a_restart(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    keep(tier, NAMES[:5])
    tier.close()
    again = disk(tmp_path)
    assert found(again, NAMES) == 5
    assert fetch(again, 1, NAMES[:5]) == [block(name) for name in NAMES[:5]]
    assert "5 blocks" in again.describe()
    again.close()


def test_close_writes_what_waits(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    tier.offer(NAMES[:10], [block(name) for name in NAMES[:10]])
    tier.close()
    assert found(disk(tmp_path), NAMES) == 10


def test_only_the_beginning_of_a_chain_counts(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    keep(tier, [*NAMES[:3], *NAMES[4:]])
    assert found(tier, NAMES) == 3
    assert found(tier, NAMES[3:]) == 0
    tier.close()


def test_two_engines_share_a_folder(tmp_path: Path) -> None:
    one, other = disk(tmp_path), disk(tmp_path)
    keep(one, NAMES[:6])
    until(lambda: found(other, NAMES) == 6)
    assert fetch(other, 1, NAMES[:6]) == [block(name) for name in NAMES[:6]]
    assert not other.wants(NAMES[0], evicted=False)
    keep(other, NAMES[6:8])
    until(lambda: found(one, NAMES) == 8)
    one.forget(NAMES[:1])
    until(lambda: found(other, NAMES) == 0)
    one.close()
    other.close()


def test_engines_of_other_layouts_share_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "_REFRESH", 0.01)
    other = b"another-layout.."
    tiers = [disk(tmp_path, 10 * FILE), disk(tmp_path, 10 * FILE, other)]
    for at in range(10):
        for tier in tiers:
            keep(tier, NAMES[at : at + 1])

    def held() -> int:
        return sum(file.stat().st_size for file in tmp_path.rglob("*.kv"))

    until(lambda: held() <= 10 * FILE)
    until(lambda: all(tier.stats()[0].blocks < 10 for tier in tiers))
    for tier in tiers:
        tier.close()


@pytest.mark.parametrize("at", [0, 5, 30, 50, 57, HEADER_BYTES, HEADER_BYTES + SIZE - 1])
def test_a_changed_byte_is_a_miss(tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture) -> None:
    tier = disk(tmp_path)
    keep(tier, NAMES[:4])
    file = path_of(tmp_path, NAMES[2])
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    assert fetch(tier, 1, NAMES[:4]) == [block(name) for name in NAMES[:2]]
    assert not file.exists()
    assert found(tier, NAMES) == 2
    assert tier.stats()[0].failures == 1
    assert caplog.text.count("a block was dropped") == 1
    keep(tier, NAMES[2:3])
    assert fetch(tier, 2, NAMES[:4]) == [block(name) for name in NAMES[:4]]
    tier.close()


@pytest.mark.parametrize("size", [0, 10, HEADER_BYTES, HEADER_BYTES + SIZE - 1])
def test_a_torn_file_is_a_miss(tmp_path: Path, size: int) -> None:
    tier = disk(tmp_path)
    keep(tier, NAMES[:2])
    os.truncate(path_of(tmp_path, NAMES[1]), size)
    assert fetch(tier, 1, NAMES[:2]) == [block(NAMES[0])]
    tier.close()


def test_another_blocks_bytes_under_a_name_are_a_miss(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    keep(tier, NAMES[:2])
    os.replace(path_of(tmp_path, NAMES[0]), path_of(tmp_path, NAMES[1]))
    assert fetch(tier, 1, NAMES[1:2]) == []
    tier.close()


def test_another_layout_is_not_found_and_not_read(tmp_path: Path) -> None:
    tier, other = disk(tmp_path), disk(tmp_path, layout=b"another-16-bytes", size=2 * SIZE)
    keep(tier, NAMES[:2])
    assert found(other, NAMES) == 0
    target = path_of(tmp_path, NAMES[0], b"another-16-bytes")
    os.link(path_of(tmp_path, NAMES[0]), target)
    assert fetch(other, 1, NAMES[:1]) == []
    tier.close()
    other.close()


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    tier = disk(tmp_path, limit=10 * FILE)
    keep(tier, NAMES[:10])
    for at, name in enumerate(NAMES[:10]):
        os.utime(path_of(tmp_path, name), (at, at))
    tier.close()
    tier = disk(tmp_path, limit=10 * FILE)
    assert fetch(tier, 1, NAMES[:1]) == [block(NAMES[0])]
    keep(tier, NAMES[10:12])
    kept = [name for name in NAMES[:12] if path_of(tmp_path, name).exists()]
    assert NAMES[0] in kept, "it was used last"
    assert NAMES[1] not in kept
    assert len(kept) * FILE <= 10 * FILE
    tier.close()


def test_what_another_process_uses_stays(tmp_path: Path) -> None:
    tier = disk(tmp_path, limit=10 * FILE)
    keep(tier, NAMES[:10])
    for at, name in enumerate(NAMES[:10]):
        os.utime(path_of(tmp_path, name), (at, at))
    tier.close()
    tier = disk(tmp_path, limit=10 * FILE)
    os.utime(path_of(tmp_path, NAMES[0]), (time.time(), time.time()))
    keep(tier, NAMES[10:11])
    assert path_of(tmp_path, NAMES[0]).exists()
    assert not path_of(tmp_path, NAMES[1]).exists()
    tier.close()


def test_other_layouts_count_and_go_when_they_are_old(tmp_path: Path) -> None:
    old = disk(tmp_path, layout=b"another-16-bytes")
    keep(old, NAMES[:8])
    for name in NAMES[:8]:
        os.utime(path_of(tmp_path, name, b"another-16-bytes"), (1, 1))
    old.close()
    tier = disk(tmp_path, limit=10 * FILE)
    assert tier.stats()[0].bytes == 8 * FILE
    keep(tier, NAMES[:4])
    assert found(tier, NAMES) == 4
    assert tier.stats()[0].bytes <= 10 * FILE
    tier.close()


def test_a_full_disk_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier = disk(tmp_path)
    keep(tier, NAMES[:2])

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(BlockFolder, "write", full)
    tier.offer(NAMES[2:5], [block(name) for name in NAMES[2:5]])
    until(lambda: tier.stats()[0].failures == 1)
    until(lambda: not tier.wants(NAMES[9], evicted=False))
    assert fetch(tier, 1, NAMES[:2]) == [block(name) for name in NAMES[:2]]
    assert caplog.text.count("No space left") == 1
    tier.close()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = BlockFolder(tmp_path, LAYOUT)
    folder.prepare()

    def fails(self: Path, target: Path) -> Path:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="Input/output"):
        folder.write(NAMES[0], 16, block(NAMES[0]))
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_a_folder_that_cannot_be_made_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a folder")
    tier = disk(tmp_path / "file")
    assert found(tier, NAMES) == 0
    assert not tier.wants(NAMES[0], evicted=False)
    tier.offer(NAMES[:1], [block(NAMES[0])])
    tier.close()
    assert "nothing can be written" in caplog.text


def test_a_disk_that_fails_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = disk(tmp_path)
    keep(tier, NAMES)

    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(BlockFolder, "read", broken)
    monkeypatch.setattr(BlockFolder, "remove", broken)
    for ticket, name in enumerate(NAMES[:8]):
        assert fetch(tier, ticket, [name]) == []
    assert found(tier, NAMES[10:]) == 0
    tier.close()


def test_a_file_that_vanishes_is_a_miss_without_a_failure(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    keep(tier, NAMES[:3])
    path_of(tmp_path, NAMES[1]).unlink()
    assert fetch(tier, 1, NAMES[:3]) == [block(NAMES[0])]
    assert tier.stats()[0].failures == 0
    assert found(tier, NAMES[:3]) == 1
    tier.close()


def test_a_released_ticket_delivers_no_more(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    keep(tier, NAMES)
    tier.release(7)
    assert fetch(tier, 1, NAMES[:1]) == [block(NAMES[0])]
    tier.fetch(2, NAMES, None)  # type: ignore[arg-type]
    tier.release(2)
    assert fetch_of(tier, 3) == [block(name) for name in NAMES]
    tier.close()


def fetch_of(tier: disk_tier.DiskTier, ticket: int) -> list[bytes]:
    """As `fetch`, beside arrivals of other tickets."""
    found: list[bytes] = []
    tier.fetch(ticket, NAMES, None)  # type: ignore[arg-type]
    ended = False
    while not ended:
        for arrival in tier.poll():
            if arrival.ticket == ticket:
                found += [bytes(one) for one in arrival.blocks]
                ended = arrival.ends
    return found


def test_what_is_forgotten_never_comes_back(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    keep(tier, NAMES[:4])
    tier.forget(NAMES[2:6])
    assert found(tier, NAMES) == 2
    assert not tier.wants(NAMES[5], evicted=False)
    tier.close()
    assert found(disk(tmp_path), NAMES) == 2


def test_one_offs_are_written_within_a_budget(tmp_path: Path) -> None:
    now = 100.0
    tier = disk_tier.DiskTier(tmp_path, 1 << 30, LAYOUT, SIZE, 16, clock=lambda: now)
    assert tier.wants(NAMES[0], evicted=True)
    tier._credit = -1.0
    assert not tier.wants(NAMES[1], evicted=True)
    assert tier.wants(NAMES[1], evicted=False)
    now += 600.0
    assert tier.wants(NAMES[1], evicted=True)
    tier.close()


def test_half_written_files_are_cleared_away_when_they_are_old(tmp_path: Path) -> None:
    disk(tmp_path).close()
    part = path_of(tmp_path, NAMES[0]).with_suffix(".1-1.part")
    young = path_of(tmp_path, NAMES[1]).with_suffix(".1-1.part")
    for file in (part, young):
        file.write_bytes(b"half")
    os.utime(part, (1, 1))
    tier = disk(tmp_path)
    assert not part.exists()
    assert young.exists()
    assert found(tier, NAMES) == 0
    tier.close()


def test_strange_files_are_ignored(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    keep(tier, NAMES[:1])
    tier.close()
    (path_of(tmp_path, NAMES[0]).parent / "notes.kv").write_text("mine")
    (tmp_path / "readme").write_text("mine")
    (tmp_path / LAYOUT.hex() / "file").write_text("mine")
    tier = disk(tmp_path)
    assert tier.stats()[0].blocks == 1
    tier.close()


def test_a_folder_in_the_place_of_a_block_costs_that_block_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk(tmp_path).close()
    path_of(tmp_path, NAMES[1]).mkdir()
    tier = disk(tmp_path)
    assert found(tier, NAMES) == 0
    keep(tier, [NAMES[0]])
    tier.offer([NAMES[1]], [block(NAMES[1])])
    until(lambda: tier.stats()[0].failures == 1)
    assert not tier.wants(NAMES[1], False), "it is not tried again"
    keep(tier, NAMES[2:])
    assert (found(tier, NAMES), found(tier, NAMES[2:])) == (1, 18)
    assert "a block's file is a folder" in caplog.text
    assert len(caplog.records) == 1
    tier.close()


def test_only_this_user_may_read_the_blocks(tmp_path: Path) -> None:
    tier = disk(tmp_path / "new")
    keep(tier, NAMES[:1])
    tier.close()
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    assert path_of(tmp_path / "new", NAMES[0]).parent.stat().st_mode & 0o077 == 0


def test_an_index_of_many_blocks_is_quick(tmp_path: Path) -> None:
    """10^5 blocks are an index of less than a second; the files themselves are `ci/tier_speed.py`'s matter."""
    from headrace.tiers.block_index import BlockIndex

    index = BlockIndex("own")
    for at in range(100_000):
        index.add(StoredBlock("own" if at % 2 else "other", at.to_bytes(16, "big"), 10, float(at)))
    assert (len(index), index.bytes) == (50_000, 1_000_000)
    assert next(index.oldest()).used == 0.0
