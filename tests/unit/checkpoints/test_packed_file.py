"""A file of packed weights: what was written comes back, and nothing else ever does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.checkpoints.packed.atomic import replacing
from headrace.checkpoints.packed.file import Unsound, _sum, read, read_header, write

KEY = "k" * 40
BUFFERS = [
    torch.arange(3_000_000, dtype=torch.int32),
    torch.tensor([], dtype=torch.float32),
    torch.tensor([1, 2, 3], dtype=torch.uint8),
    torch.full((7, 5), 0.5, dtype=torch.bfloat16),
]


def take(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written = tmp_path / "a.packed"
    size = write(written, KEY, {"model": "m"}, {"some": ["tree"]}, BUFFERS)
    assert size == written.stat().st_size
    return written


def test_what_was_written_is_read(path: Path) -> None:
    header, buffers = read(path, KEY, take)
    assert (header["tree"], header["about"]) == ({"some": ["tree"]}, {"model": "m"})
    for found, wanted in zip(buffers, BUFFERS, strict=True):
        assert torch.equal(found.view(wanted.dtype).view(wanted.shape), wanted)
        assert found.storage_offset() % 64 == 0
    assert [entry.name for entry in path.parent.iterdir()] == ["a.packed"]


@pytest.mark.parametrize(
    ("at", "message"),
    [(0, "begins with"), (20, "header is damaged"), (60, "header is damaged"), (5000, "not what was written")],
)
def test_a_changed_byte_is_found(path: Path, at: int, message: str) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 64
    path.write_bytes(data)
    with pytest.raises(Unsound, match=message):
        read(path, KEY, take)


def test_every_buffer_is_summed(path: Path) -> None:
    start = read_header(path)[1]
    data = path.read_bytes()
    for at in (start, start + 12_000_000 - 1, start + 12_000_000 + 2, len(data) - 64 - 1):
        broken = bytearray(data)
        broken[at] ^= 1
        path.write_bytes(broken)
        used = any(at - start in range(entry[0], entry[0] + entry[1]) for entry in read_header(path)[0]["buffers"])
        if used:
            with pytest.raises(Unsound, match="not what was written"):
                read(path, KEY, take)


@pytest.mark.parametrize("unit", [1, 8, 64, 512, 4096, 8192, 1 << 19])
def test_two_runs_of_bytes_that_change_places_are_found(path: Path, unit: int) -> None:
    """Inside one piece, where the sum of all words stays the same."""
    data = path.read_bytes()
    at = read_header(path)[1] + (1 << 20) + 1
    assert data[at : at + unit] != data[at + unit : at + 2 * unit]
    path.write_bytes(data[:at] + data[at + unit : at + 2 * unit] + data[at : at + unit] + data[at + 2 * unit :])
    with pytest.raises(Unsound, match="not what was written"):
        read(path, KEY, take)


def test_the_sum_depends_on_every_word_and_its_place() -> None:
    draw = np.random.default_rng(0)
    piece = draw.integers(0, 256, (1 << 18) + 100, dtype=np.uint8)
    sums = {_sum(piece)}
    words = piece[: len(piece) // 8 * 8].view(np.uint64)
    for _ in range(50):
        one, other = draw.choice(len(words), 2, replace=False)
        for change in (np.uint64(1), np.uint64(1 << 63)):
            words[[one, other]] ^= change
            sums.add(_sum(piece))
            words[[one, other]] ^= change
        words[[one, other]] = words[[other, one]]
        sums.add(_sum(piece))
        words[[one, other]] = words[[other, one]]
    assert len(sums) == 151
    assert _sum(piece) in sums


@pytest.mark.parametrize("keep", [0, 10, 100, 5000, -1])
def test_a_shortened_file_is_found(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(Unsound):
        read(path, KEY, take)


def test_a_longer_file_and_one_of_zeros_are_found(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data + b"\0")
    with pytest.raises(Unsound, match="bytes, not"):
        read(path, KEY, take)
    path.write_bytes(bytes(len(data)))
    with pytest.raises(Unsound, match="begins with"):
        read(path, KEY, take)


def test_a_header_that_claims_the_world_is_not_read(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8:16] = (1 << 60).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(Unsound, match="claims"):
        read_header(path)


def test_another_models_file_is_refused(path: Path) -> None:
    with pytest.raises(Unsound, match="another model"):
        read(path, "other", take)


def test_nothing_is_left_of_a_failed_write(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.write_bytes(b"before")

    def fail() -> None:
        with replacing(target) as file:
            file.write(b"half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]
    assert target.read_bytes() == b"before"
