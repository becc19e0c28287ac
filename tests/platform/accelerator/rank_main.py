"""One rank of a world: checks every collective and prints `ok`. Arguments: kind, rank, rendezvous, and where memory is
shared.

`kind` is `host` (gloo and shared memory, in one process) or a platform's name, whose own collectives are then checked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.errors import PlatformError
from headrace.platforms.cpu import shm_communicator
from headrace.platforms.cpu.shm_communicator import ShmCommunicator, connect
from headrace.platforms.interface import ALL_TO_ALL, Communicator
from headrace.platforms.torch_communicator import TorchCommunicator, World
from headrace.types import COLLECTIVES

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32)
SIZE = 2


def check_all(group: Any, rank: int, place: Callable[[torch.Tensor], Any] = lambda x: x) -> None:
    """`rank` counts within the group."""
    for dtype in DTYPES:
        for shape in ((2, 4), (4,), (2, 3, 2), (0, 2), (6, 70000)):
            parts = [(torch.arange(torch.Size(shape).numel()).reshape(shape) % 97 + r).to(dtype) for r in range(SIZE)]
            x = place(parts[rank])
            same(group.all_reduce(x), (parts[0].float() + parts[1].float()).to(dtype))
            for dim in range(len(shape)):
                same(group.all_gather(x, dim), torch.cat(parts, dim))
                if shape[dim] % SIZE == 0:
                    sent = [part.tensor_split(SIZE, dim)[rank] for part in parts]
                    same(group.all_to_all(x, dim), torch.cat(sent, dim))
            for root in range(SIZE):
                same(group.broadcast(x, root), parts[root])
            if shape[0] % 2 == 0 and len(parts[0].flatten()):
                whole = (parts[0].float() + parts[1].float()).to(dtype)
                same(group.reduce_scatter(x, 0), whole.chunk(2, 0)[rank])
            same(x, parts[rank])  # inputs are left as they are
    # A view that is not contiguous.
    wide = place(torch.arange(12.0).reshape(3, 4) + rank).t()
    same(group.all_reduce(wide), (2 * torch.arange(12.0).reshape(3, 4) + 1).t())
    same(group.all_gather(wide, 0)[:4], torch.arange(12.0).reshape(3, 4).t())
    refused(lambda: group.reduce_scatter(place(torch.zeros(3)), 0), "dimension 0 of 3 does not divide among 2 ranks")
    refused(lambda: group.all_to_all(place(torch.zeros(2, 3)), 1), "all_to_all: dimension 1 of 3 does not divide")


def same(found: Any, wanted: torch.Tensor) -> None:
    found = found.cpu()
    assert found.dtype == wanted.dtype, (found.dtype, wanted.dtype)
    assert torch.equal(found, wanted), (found, wanted)


def refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(PlatformError, match=re.escape(said)):
        call()


def sums_are_the_same_everywhere(group: Communicator, rank: int) -> None:
    """To the bit, and in every run: floats of very different sizes."""
    noise = torch.randn(4096, generator=torch.Generator().manual_seed(rank)) * 10.0 ** (torch.arange(4096) % 12)
    first = group.all_reduce(noise)
    assert torch.equal(first, group.all_reduce(noise))
    both = group.all_gather(first.view(1, -1), 0)
    assert torch.equal(both[0], both[1])


def many_in_a_row(group: Communicator, rank: int) -> None:
    """Slots are used again at once: no rank may overtake another by two."""
    for turn in range(300):
        found = group.all_reduce(torch.full((64,), turn * SIZE + rank, dtype=torch.int64))
        assert found.unique().tolist() == [2 * turn * SIZE + 1], turn


def host(rank: int, rendezvous: str) -> None:
    world = World(rank, SIZE, rendezvous, timeout=300)
    gloo = world.communicator([0, 1], "gloo")
    assert isinstance(gloo, TorchCommunicator)
    check_all(gloo, rank)
    shared = connect(world, [0, 1])
    assert isinstance(shared, ShmCommunicator)
    check_all(shared, rank)
    sums_are_the_same_everywhere(shared, rank)
    many_in_a_row(shared, rank)
    turned = world.communicator([1, 0], "gloo")
    check_all(turned, 1 - rank)
    refused(lambda: world.communicator([0, 1], "xccl"), "this build of torch has no xccl")
    refused(lambda: world.communicator([1 - rank], "gloo"), "cannot take part in a group")
    refused(lambda: world.communicator([0, 1, 2], "gloo"), "cannot take part in a group")
    mismatch(shared, rank)
    leave(world, rank)


def mismatch(shared: Communicator, rank: int) -> None:
    refused(lambda: shared.all_reduce(torch.zeros(4 + rank)), "all ranks of a group call the same collectives")


def leave(world: World, rank: int) -> None:
    """Rank 1 exits; rank 0 gets an error."""
    shared, gloo = connect(world, [0, 1]), world.communicator([0, 1], "gloo")
    if rank == 0:
        assert isinstance(shared, ShmCommunicator)
        shared._segment._timeout = 1.0
        refused(lambda: shared.all_reduce(torch.zeros(4)), "rank 1 has not arrived within 1 s")
        refused(lambda: gloo.all_reduce(torch.zeros(4)), "all_reduce: rank 0 of 2")
    world.close()


def platform(name: str, rank: int, rendezvous: str) -> None:
    from headrace.plugins import discover

    options = {"rank": rank, "world_size": SIZE, "rendezvous": rendezvous}
    found = discover().select_platform(name)[0]
    device = found.open(0 if name == "cpu" else rank, options)
    assert device.capabilities().collectives == COLLECTIVES | {ALL_TO_ALL}
    home: Any = device.torch_device
    check_all(device.communicator([0, 1]), rank, lambda x: x.to(home))
    assert device.communicator([rank]).all_reduce(5) == 5
    device.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, rank_, meeting = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if kind == "host":
        shm_communicator._FOLDER = Path(sys.argv[4])
        host(rank_, meeting)
    else:
        platform(kind, rank_, meeting)
    print("ok")
