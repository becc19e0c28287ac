"""Collectives as kernels: sums in rank order, any size, recorded or not; a rank that ends, hangs or differs fails the
step."""

from __future__ import annotations

import mmap
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.errors import DeviceLost, PlatformError
from headrace.kernels.embedding.reference import embedding
from headrace.platforms.cpu import native_communicator, shm_communicator
from headrace.platforms.cpu.native import missing
from headrace.platforms.cpu.native_communicator import SLOT, NativeCommunicator, NativeSegment
from headrace.platforms.cpu.native_device import NativeDevice
from headrace.platforms.interface import ALL_TO_ALL
from headrace.quant.weights import dense
from headrace.types import COLLECTIVES, Bucket, KVLayout, LayerKV

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def nobody() -> Any:
    raise AssertionError("no other collective was called")


@contextmanager
def group(size: int, threads: int = 1, timeout: float = 300.0) -> Iterator[list[tuple[NativeDevice, Any]]]:
    """(device, communicator) of ranks in this process."""
    memory = mmap.mmap(-1, NativeSegment.bytes(size))
    devices = [NativeDevice(threads=threads) for _ in range(size)]
    segments = [NativeSegment(memory, rank, size, timeout, spin=False) for rank in range(size)]
    try:
        yield [(d, NativeCommunicator(s, d._ops, nobody)) for d, s in zip(devices, segments, strict=True)]
    finally:
        for device in devices:
            device.close()


def together(work: Callable[[int], Any], size: int) -> list[Any]:
    with ThreadPoolExecutor(size) as pool:
        return [future.result(timeout=300) for future in [pool.submit(work, rank) for rank in range(size)]]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.bfloat16, torch.float16]
)
@pytest.mark.parametrize(("size", "threads"), [(2, 1), (3, 2)])
def test_sums_and_gathers_of_every_shape(size: int, threads: int, dtype: torch.dtype) -> None:
    with group(size, threads) as ranks:
        for shape in ((3, 5), (4,), (6, 6), (2, 3, 2), (0, 2), (3, 1 + SLOT // 4), (5, 6 * (SLOT // 16)), ()):
            count = torch.Size(shape).numel()
            parts = [((torch.arange(count).reshape(shape) * 7 + rank) % 97).to(dtype) for rank in range(size)]
            total = torch.stack(parts).to(torch.float64).sum(0).to(dtype)
            for found in together(lambda rank, x=parts: ranks[rank][1].all_reduce(x[rank]), size):
                assert found.dtype == dtype
                assert torch.equal(found, total)
            for dim in range(len(shape)):
                gathered = together(lambda rank, x=parts, d=dim: ranks[rank][1].all_gather(x[rank], d), size)
                assert all(torch.equal(found, torch.cat(parts, dim)) for found in gathered), (shape, dim)
                if shape[dim] % size == 0:
                    sent = [part.tensor_split(size, dim) for part in parts]
                    found = together(lambda rank, x=parts, d=dim: ranks[rank][1].all_to_all(x[rank], d), size)
                    wanted = [torch.cat([blocks[rank] for blocks in sent], dim) for rank in range(size)]
                    assert all(map(torch.equal, found, wanted)), (shape, dim)


def test_sums_are_added_in_rank_order_for_any_number_of_threads() -> None:
    noise = [
        torch.randn(70_001, generator=torch.Generator().manual_seed(rank)) * 10.0 ** (torch.arange(70_001) % 12)
        for rank in range(3)
    ]
    wanted = (noise[0] + noise[1]) + noise[2]
    for threads in (1, 2):
        with group(3, threads) as ranks:
            for found in together(lambda rank, r=ranks: r[rank][1].all_reduce(noise[rank]), 3):
                assert torch.equal(found, wanted)


def test_halves_are_added_in_float32_and_rounded_once() -> None:
    parts = [torch.tensor([256.0, 1.0]), torch.tensor([1.0, 2**-8]), torch.tensor([1.0, 2**-8])]
    with group(3) as ranks:
        for found in together(lambda rank: ranks[rank][1].all_reduce(parts[rank].bfloat16()), 3):
            assert found.tolist() == [258.0, 1.0078125]


def test_a_recorded_step_calls_them_with_the_true_sizes() -> None:
    """The tape is recorded for 8 tokens and replayed for fewer."""

    def run(rank: int, ranks: list[tuple[NativeDevice, Any]]) -> list[torch.Tensor]:
        device, communicator = ranks[rank]

        def step(kv: Any, inputs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
            x = ops(inputs["token_ids"], table, 1.0)
            total = communicator.all_reduce(x)
            return kv, {"total": total, "wide": communicator.all_gather(x, 1), "long": communicator.all_gather(x, 0),
                "mixed": communicator.all_to_all(x, 1)}  # fmt: skip

        ops = device._table["embedding"]
        table = dense(torch.arange(16.0).reshape(4, 4) * (rank + 1))
        executable = device.compile(step, Bucket(8, 2, 8, 1))
        kv = device.alloc_kv(KVLayout((LayerKV(1, 16),), 16, "float32"), 1)
        found = []
        for ids in ([1, 3, 0], [2], [0, 1, 2, 3, 3]):
            given = torch.tensor(ids, dtype=torch.int32)
            sizes = torch.tensor([len(ids), 1, 1], dtype=torch.int32)
            _, outputs = executable(kv, {"token_ids": given, "sizes": sizes})
            found += [torch.from_numpy(device.get(outputs[n]).result()) for n in ("total", "wide", "long", "mixed")]
        return found

    with group(2) as ranks:
        first, second = together(lambda rank: run(rank, ranks), 2)
    for ids, at in (([1, 3, 0], 0), ([2], 4), ([0, 1, 2, 3, 3], 8)):
        x = torch.arange(16.0).reshape(4, 4)[ids]
        for rank, found in enumerate((first, second)):
            assert torch.equal(found[at], 3 * x)
            assert torch.equal(found[at + 1], torch.cat([x, 2 * x], 1))
            assert torch.equal(found[at + 2][: 2 * len(ids)], torch.cat([x, 2 * x]))
            own = x[:, 2 * rank : 2 * rank + 2]
            assert torch.equal(found[at + 3], torch.cat([own, 2 * own], 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_part_of_a_table_gives_zeros_for_ids_of_others(dtype: torch.dtype) -> None:
    whole = torch.randn(20, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    ids = torch.tensor([3, 19, 0, 9, 10, 12, 19], dtype=torch.int32)
    with NativeDeviceOf(1) as device:
        part = dense(whole[10:15])
        found = device._table["embedding"](ids, part, 2.0, first_row=10)
        inside = ((ids >= 10) & (ids < 15)).unsqueeze(1)
        assert torch.equal(found, torch.where(inside, 2.0 * whole[ids.long()].float(), 0.0))
        assert torch.equal(found, embedding(ids, part, 2.0, first_row=10))


class NativeDeviceOf:
    def __init__(self, threads: int) -> None:
        self._device = NativeDevice(threads=threads)

    def __enter__(self) -> NativeDevice:
        return self._device

    def __exit__(self, *error: object) -> None:
        self._device.close()


def test_a_rank_that_does_not_arrive_is_reported_after_the_timeout() -> None:
    with group(2, timeout=0.05) as ranks:
        with pytest.raises(DeviceLost, match="cpu: rank 1 has not arrived in time; start the engine again"):
            ranks[0][1].all_reduce(torch.zeros(4))
        # The one that comes late still finds the part that was left, and learns at its next turn.
        assert ranks[1][1].all_reduce(torch.ones(4)).tolist() == [1, 1, 1, 1]
        with pytest.raises(DeviceLost, match="cpu: rank 0 has failed"):
            ranks[1][1].all_reduce(torch.zeros(4))


def test_a_rank_that_has_ended_is_noticed_at_once() -> None:
    memory = mmap.mmap(-1, NativeSegment.bytes(2))
    with subprocess.Popen([sys.executable, "-c", ""]) as gone, NativeDeviceOf(1) as device:
        while Path(f"/proc/{gone.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        segment = NativeSegment(memory, 0, 2, 300.0, spin=False)
        memory.seek(native_communicator._LINE + native_communicator._PID_AT)
        memory.write(gone.pid.to_bytes(4, "little"))
        with pytest.raises(DeviceLost, match="cpu: rank 1 has ended"):
            NativeCommunicator(segment, device._ops, nobody).all_reduce(torch.zeros(4))


def test_ranks_that_call_with_other_sizes_are_reported() -> None:
    with group(2) as ranks:

        def call(rank: int) -> str:
            with pytest.raises(DeviceLost) as caught:
                ranks[rank][1].all_reduce(torch.zeros(4 + rank))
            return str(caught.value)

        said = together(call, 2)
    assert "all ranks of a group call the same collectives" in said[0] + said[1]


def test_what_cannot_be_added_or_recorded_is_refused() -> None:
    with group(1) as ranks, pytest.raises(PlatformError, match=r"all_reduce of torch\.bool: there are torch\.float32"):
        ranks[0][1].all_reduce(torch.zeros(2, dtype=torch.bool))
    with group(2) as ranks, pytest.raises(PlatformError, match="dimension 1 of 3 does not divide among 2 ranks"):
        ranks[0][1].all_to_all(torch.zeros(2, 3), 1)


def test_ranks_without_common_memory_are_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_communicator, "_attach", lambda path: None)

    def opened(rank: int) -> str:
        device = NativeDevice(threads=1, rank=rank, world_size=2, rendezvous=f"file://{tmp_path}/meeting")
        with pytest.raises(PlatformError) as caught:
            device.communicator([0, 1])
        device.close()
        return str(caught.value)

    for said in together(opened, 2):
        assert "2 ranks don't share memory: start them on one machine" in said
        assert "HEADRACE_NATIVE=0" in said


def test_ranks_divide_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.platforms.cpu import native_team

    monkeypatch.setattr(native_team, "allowed_cores", lambda: [0, 0, 0, 0, 0, 0])
    counts = []
    for rank in range(3):
        device = NativeDevice(rank=rank, world_size=3, rendezvous="file:///nowhere")
        counts.append(device.team.threads)
        assert device.capabilities().collectives == COLLECTIVES | {ALL_TO_ALL}
        device.close()
    assert counts == [2, 2, 2]
