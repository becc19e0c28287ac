"""Pages of a checkpoint's files are given back, and are the same when they are read again."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
import torch

from headrace.checkpoints.released_memory import MappedFiles, trim_heap

SIZE = 4 << 20


def resident(path: Path) -> int:
    """Bytes of the file that this process has in memory."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.endswith(str(path)))
    return next(int(line.split()[1]) << 10 for line in lines[at:] if line.startswith("Rss:"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the maps of a process")
def test_pages_are_given_back_and_read_again(tmp_path: Path) -> None:
    file, other = tmp_path / "model.safetensors", tmp_path / "other"
    wanted = torch.arange(SIZE // 4, dtype=torch.int32)
    for path in (file, other):
        path.write_bytes(wanted.numpy().tobytes())
    link = tmp_path / "linked"
    link.mkdir()
    (link / "model.safetensors").symlink_to(file)
    maps = []
    for path in (file, other):
        with path.open("rb") as opened:
            maps.append(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY))
    views = [torch.frombuffer(found, dtype=torch.int32) for found in maps]
    assert all(torch.equal(view, wanted) for view in views)
    assert resident(file) == SIZE
    MappedFiles(link).give_back()
    assert resident(file) == 0
    assert resident(other) == SIZE, "of another file"
    assert torch.equal(views[0], wanted)
    MappedFiles(file).give_back()
    assert resident(file) == 0


def test_a_checkpoint_that_is_not_mapped_has_nothing_to_give(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    MappedFiles(tmp_path).give_back()
    trim_heap()
