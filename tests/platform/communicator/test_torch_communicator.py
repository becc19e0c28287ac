"""Collectives between processes, and what a world refuses without connecting."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rank_main
import torch

from headrace.errors import PlatformError
from headrace.platforms import torch_communicator
from headrace.platforms.cpu import CpuPlatform, shm_communicator
from headrace.platforms.cpu.shm_communicator import ShmCommunicator, ShmSegment
from headrace.platforms.interface import ALL_TO_ALL
from headrace.platforms.torch_communicator import TorchCommunicator, World
from headrace.types import COLLECTIVES

PATIENCE = 300.0
"""Seconds; for what comes soon, unless the machine stands still."""


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def ranks(kind: str, rendezvous: str, folder: Path) -> list[str]:
    """The last line that each of two ranks prints."""
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    made = [
        subprocess.Popen(
            [sys.executable, rank_main.__file__, kind, str(rank), rendezvous, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ,
        )
        for rank in range(2)
    ]
    try:
        return [rank.communicate(timeout=PATIENCE)[0].splitlines()[-1] for rank in made]
    finally:
        for rank in made:
            rank.kill()
            rank.communicate()


@pytest.fixture
def segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where memory is shared: a folder that no other process of this machine uses, empty but while ranks meet."""
    folder = tmp_path / "segments"
    folder.mkdir()
    monkeypatch.setattr(shm_communicator, "_FOLDER", folder)
    return folder


@pytest.mark.slow
def test_two_processes_agree_over_gloo_and_shared_memory(segments: Path) -> None:
    assert ranks("host", f"tcp://127.0.0.1:{free_port()}", segments) == ["ok", "ok"]
    assert list(segments.iterdir()) == [], "a name is gone once all have attached"


@pytest.mark.parametrize(
    ("rank", "size", "rendezvous", "said"),
    [
        (0, 0, "", "option world_size is 0: give a count of at least 1"),
        (-1, 2, "tcp://a:1", "option rank is -1"),
        (True, 2, "tcp://a:1", "option rank is True"),
        (2, 2, "tcp://a:1", "with world_size 2 it is at most 1"),
        (0, 2, "http://a:1", "option rendezvous is 'http://a:1': give tcp://host:port or file:///path"),
    ],
)
def test_a_world_that_cannot_be_is_refused(rank: Any, size: int, rendezvous: str, said: str) -> None:
    with pytest.raises(PlatformError, match=said):
        World(rank, size, rendezvous)


class Busy(World):
    """A rank that has connected but does not know it yet, while the other one could already go."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, timeout=PATIENCE)
        self.go = threading.Event()

    def _make(self, backend: str, store: Any, rank: int, size: int) -> Any:
        made = super()._make(backend, store, rank, size)
        assert self.go.wait(PATIENCE)
        return made


class Unaware(Busy):
    """A rank that receives the decision late."""

    def store(self, group: Sequence[int]) -> Any:
        return Slow(super().store(group), self.go)


class Slow:
    def __init__(self, store: Any, go: threading.Event) -> None:
        self._store, self._go = store, go

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> Any:
        assert key != "decision" or self._go.wait(PATIENCE)
        return self._store.get(key)


def test_no_rank_leaves_before_all_are_connected(tmp_path: Path) -> None:
    slow, quick = Busy(0, 2, f"file://{tmp_path}/meeting"), World(1, 2, f"file://{tmp_path}/meeting", timeout=PATIENCE)
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(world.communicator, [0, 1], "gloo") for world in (slow, quick))
        early = wait([second], 0.3)
        slow.go.set()
        assert early.not_done
        second.result(PATIENCE)
        quick.close()
        assert isinstance(first.result(PATIENCE), TorchCommunicator)
    slow.close()


def test_rank_0_keeps_the_store_until_all_know_of_the_memory(tmp_path: Path) -> None:
    first, slow = (
        World(0, 2, f"file://{tmp_path}/meeting", timeout=PATIENCE),
        Unaware(1, 2, f"file://{tmp_path}/meeting"),
    )
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(shm_communicator.connect, world, [0, 1]) for world in (first, slow)]
        early = wait(futures[:1], 0.3)
        slow.go.set()
        assert early.not_done
        assert all(isinstance(future.result(PATIENCE), ShmCommunicator) for future in futures)


def test_an_address_needs_a_port() -> None:
    with pytest.raises(PlatformError, match=r"'tcp://127\.0\.0\.1': give tcp://host:port"):
        World(0, 2, "tcp://127.0.0.1").store([0, 1])


def test_a_port_that_is_taken_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PlatformError, match=r"rendezvous: .*in use"):
            World(0, 2, f"tcp://127.0.0.1:{taken.getsockname()[1]}").store([0, 1])


def test_rank_0_listens_on_its_own_address_only() -> None:
    port = free_port()
    store = World(0, 2, f"tcp://127.0.0.1:{port}").store([0, 1])
    with socket.socket() as other, pytest.raises(OSError, match="refused"):
        other.connect(("127.0.0.2", port))
    del store


def test_one_rank_never_connects() -> None:
    world = World(0, 1, "")
    world.close()
    assert world.rank == 0


class Work:
    def wait(self) -> None:
        pass


class VendorGroup:
    """A vendor's process group of two ranks, the other of which has the same."""

    Options = SimpleNamespace

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        self.rank, self.size, self.options, self.aborted = rank, size, options, False

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        tensors[0].mul_(self.size)
        return Work()

    def _allgather_base(self, out: torch.Tensor, source: torch.Tensor) -> Work:
        out.copy_(source.repeat(self.size))
        return Work()

    def _reduce_scatter_base(self, out: torch.Tensor, source: torch.Tensor) -> Work:
        out.copy_(source.chunk(self.size)[self.rank] * self.size)
        return Work()

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Work:
        raise RuntimeError(f"root {options.rootRank} is gone")

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize(("backend", "name"), [("nccl", "ProcessGroupNCCL"), ("xccl", "ProcessGroupXCCL")])
def test_a_vendors_group_is_made_and_used(
    backend: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_communicator.distributed, name, VendorGroup, raising=False)
    world = World(1, 2, f"file://{tmp_path}/meeting", timeout=7)
    group = world.communicator([0, 1], backend)
    assert isinstance(group, TorchCommunicator)
    made: Any = group._backend
    assert (made.rank, made.size, made.options._timeout) == (1, 2, timedelta(seconds=7))
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert group.all_reduce(x).tolist() == [[2, 4], [6, 8]]
    assert group.all_gather(x, 1).tolist() == [[1, 2, 1, 2], [3, 4, 3, 4]]
    assert group.reduce_scatter(x, 1).tolist() == [[4], [8]]
    with pytest.raises(PlatformError, match="broadcast: rank 1 of 2: root 0 is gone"):
        group.broadcast(x, 0)
    world.close()
    assert made.aborted


def test_a_group_that_cannot_be_made_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("no interface")

    broken.Options = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setattr(torch_communicator.distributed, "ProcessGroupNCCL", broken, raising=False)
    with pytest.raises(PlatformError, match="nccl: no interface: are all ranks started"):
        World(0, 2, f"file://{tmp_path}/meeting").communicator([0, 1], "nccl")


@pytest.mark.parametrize(
    ("machine", "writable", "said"),
    [("aarch64", True, "aarch64 may reorder stores"), ("x86_64", False, "/dev/shm cannot be written")],
)
def test_without_shared_memory_gloo_serves_and_the_log_has_the_reason(
    machine: str, writable: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(shm_communicator.platform, "machine", lambda: machine)
    monkeypatch.setattr(shm_communicator.os, "access", lambda path, mode: writable)
    # The only rank of its group, in a world of two.
    group = shm_communicator.connect(World(0, 2, f"file://{tmp_path}/meeting"), [0])
    assert isinstance(group, TorchCommunicator)
    assert group.all_reduce(torch.ones(2)).tolist() == [1, 1]
    assert f"collectives over gloo: {said}" in caplog.text


def segments_of(size: int, timeout: float = PATIENCE) -> list[ShmSegment]:
    memory = mmap.mmap(-1, ShmSegment.bytes(size))
    return [ShmSegment(memory, rank, size, timeout) for rank in range(size)]


def together(work: Callable[[int], Any], size: int) -> list[Any]:
    with ThreadPoolExecutor(size) as pool:
        return [future.result(timeout=PATIENCE) for future in [pool.submit(work, rank) for rank in range(size)]]


def test_three_ranks_share_what_is_larger_than_a_slot() -> None:
    made = [ShmCommunicator(segment, World(0, 1, ""), [0, 1, 2]) for segment in segments_of(3)]
    parts = [torch.arange(300_001, dtype=torch.float32) * (rank + 1) for rank in range(3)]
    for found in together(lambda rank: made[rank].all_reduce(parts[rank]), 3):
        assert torch.equal(found, 6 * torch.arange(300_001.0))
    for found in together(lambda rank: made[rank].all_gather(parts[rank], 0), 3):
        assert torch.equal(found, torch.cat(parts))


def test_halves_are_added_in_float32_and_rounded_once() -> None:
    made = [ShmCommunicator(segment, World(0, 1, ""), [0, 1, 2]) for segment in segments_of(3)]
    parts = [torch.tensor([256.0, 1.0]), torch.tensor([1.0, 2**-8]), torch.tensor([1.0, 2**-8])]
    found = together(lambda rank: made[rank].all_reduce(parts[rank].bfloat16()), 3)
    assert all(x.dtype == torch.bfloat16 and x.tolist() == [258.0, 1.0078125] for x in found)


def test_a_rank_that_does_not_arrive_or_differs_is_reported() -> None:
    first, second = segments_of(2, timeout=0.05)
    with pytest.raises(PlatformError, match=r"rank 1 has not arrived within 0 s: did its process end\?"):
        first.exchange(torch.zeros(4))
    with pytest.raises(PlatformError, match="rank 1 shares 8 bytes, but rank 0 16"):
        second.exchange(torch.zeros(2))


def test_ranks_meet_and_the_name_of_their_memory_goes(tmp_path: Path, segments: Path) -> None:
    worlds = [World(rank, 2, f"file://{tmp_path}/meeting", timeout=PATIENCE) for rank in range(2)]
    groups = together(lambda rank: shm_communicator.connect(worlds[rank], [0, 1]), 2)
    assert all(isinstance(group, ShmCommunicator) for group in groups)
    assert list(segments.iterdir()) == []
    found = together(lambda rank: groups[rank].broadcast(torch.tensor([rank]), 1), 2)
    assert [x.tolist() for x in found] == [[1], [1]]
    found = together(lambda rank: groups[rank].reduce_scatter(torch.tensor([rank, 5]), 0), 2)
    assert [x.tolist() for x in found] == [[1], [10]]
    for world in worlds:
        world.close()


def test_a_rank_that_does_not_see_the_memory_leads_all_to_gloo(
    tmp_path: Path, segments: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shm_communicator, "_attach", lambda path: None)
    worlds = [World(rank, 2, f"file://{tmp_path}/meeting", timeout=PATIENCE) for rank in range(2)]
    groups = together(lambda rank: shm_communicator.connect(worlds[rank], [0, 1]), 2)
    assert all(isinstance(group, TorchCommunicator) for group in groups)
    assert caplog.text.count("not all ranks share memory") == 2
    assert list(segments.iterdir()) == []
    for world in worlds:
        world.close()


def test_ranks_that_do_not_come_leave_no_memory_behind(tmp_path: Path, segments: Path) -> None:
    with pytest.raises(PlatformError, match="of 2 ranks not all have arrived within 0 s"):
        shm_communicator.connect(World(0, 2, f"file://{tmp_path}/meeting", timeout=0.1), [0, 1])
    assert list(segments.iterdir()) == []


def test_memory_that_cannot_be_had_leads_to_gloo(
    tmp_path: Path, segments: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(handle: int, start: int, size: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(shm_communicator.os, "posix_fallocate", full)
    group = shm_communicator.connect(World(0, 2, f"file://{tmp_path}/meeting"), [0])
    assert isinstance(group, TorchCommunicator)
    assert "No space left on device" in caplog.text
    assert list(segments.iterdir()) == []


def test_a_deleted_segment_cannot_be_attached(tmp_path: Path) -> None:
    assert shm_communicator._attach(tmp_path / "gone") is None


def test_the_cpu_opens_among_ranks(tmp_path: Path) -> None:
    def opened(rank: int) -> Any:
        meeting = f"file://{tmp_path}/meeting"
        return CpuPlatform().open(0, {"rank": rank, "world_size": 2, "rendezvous": meeting, "threads": 1})

    devices = [opened(rank) for rank in range(2)]
    groups = together(lambda rank: devices[rank].communicator([0, 1]), 2)
    found = together(lambda rank: groups[rank].all_reduce(torch.full((3,), float(rank))), 2)
    assert [x.tolist() for x in found] == [[1, 1, 1]] * 2
    assert devices[0].capabilities().collectives == COLLECTIVES | {ALL_TO_ALL}
    assert devices[0].communicator([0]).all_reduce(7) == 7
    for device in devices:
        device.close()
    alone = CpuPlatform().open(0, {"rank": 0, "world_size": 1})
    assert alone.capabilities().collectives == frozenset()
    alone.close()
