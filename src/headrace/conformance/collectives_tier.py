"""Tier 6: collectives of one rank return their inputs; those of two ranks are right, if the platform has groups."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from headrace.conformance.tiers import tier
from headrace.errors import PlatformError
from headrace.platforms.interface import ALL_TO_ALL, Communicator, Device, PassesRows, Platform

__all__ = ["CollectivesTier"]

Array = npt.NDArray[Any]
_DTYPES = ("float32", "int32")


@tier("collectives")
class CollectivesTier:
    def test_one_rank_is_the_identity(self, device: Device) -> None:
        group = device.communicator([0])
        assert isinstance(group, Communicator)
        array = np.arange(12, dtype=np.float32).reshape(3, 4)
        tensor = device.put(array)
        found = [group.all_reduce(tensor), group.all_gather(tensor, 0), group.reduce_scatter(tensor, 0)]
        for result in [*found, group.broadcast(tensor, 0)]:
            np.testing.assert_array_equal(device.get(result).result(), array)

    def test_an_undeclared_group_is_refused(self, device: Device) -> None:
        if device.capabilities().collectives:
            pytest.skip("collectives are declared")
        with pytest.raises(PlatformError, match="2"):
            device.communicator([0, 1])

    def test_two_ranks_agree(self, platform: Platform | None, tmp_path: Path) -> None:
        """Two devices of one process, opened with the options `rank`, `world_size` and `rendezvous`."""
        if platform is None:
            pytest.skip("no `platform` fixture")
        indices = _two_devices(platform)
        rendezvous = (tmp_path / "rendezvous").as_uri()
        with ThreadPoolExecutor(2) as threads:
            ranks = [threads.submit(_take_part, platform, indices[rank], rank, rendezvous) for rank in range(2)]
            found = [rank.result(120) for rank in ranks]
        for name, wanted in _wanted().items():
            for rank in range(2):
                if not name.startswith(ALL_TO_ALL) or name in found[rank]:
                    np.testing.assert_array_equal(found[rank][name], wanted[rank], f"{name} of rank {rank}")

    def test_declared_rows_pass_to_the_next_rank(self, platform: Platform | None, tmp_path: Path) -> None:
        """In the order in which they are sent, of any number. Nothing is passed if the device does not declare it."""
        if platform is None:
            pytest.skip("no `platform` fixture")
        indices = _two_devices(platform)
        rendezvous = (tmp_path / "rendezvous").as_uri()
        with ThreadPoolExecutor(2) as threads:
            ranks = [threads.submit(_pass_rows, platform, indices[rank], rank, rendezvous) for rank in range(2)]
            sent, received = (rank.result(120) for rank in ranks)
        assert (sent is None) == (received is None), "both ranks declare `passes_rows`, or none does"
        for one, other in zip(received or [], sent or [], strict=True):
            np.testing.assert_array_equal(one, other)


def _two_devices(platform: Platform) -> tuple[int, int]:
    """Device indices for two ranks: the same device twice if it is the host."""
    try:
        device = platform.open(0, {"rank": 0, "world_size": 1, "rendezvous": ""})
    except PlatformError as error:
        pytest.skip(f"groups of ranks are not declared: {error}")
    on_host = device.capabilities().host_memory
    device.close()
    count = len(platform.devices())
    if count < 2 and not on_host:
        pytest.skip(f"two ranks need two devices; there is {count}")
    return (0, 0) if on_host else (0, 1)


def _parts(dtype: str) -> list[Array]:
    return [(np.arange(24).reshape(4, 6) * (rank + 1) - rank).astype(dtype) for rank in range(2)]


def _cases(able: frozenset[str]) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """(name of a result, method, arguments after the tensor)"""
    yield "all_reduce", "all_reduce", ()
    yield "all_gather 0", "all_gather", (0,)
    yield "all_gather 1", "all_gather", (1,)
    yield "reduce_scatter", "reduce_scatter", (0,)
    yield "broadcast 0", "broadcast", (0,)
    yield "broadcast 1", "broadcast", (1,)
    if ALL_TO_ALL in able:
        yield "all_to_all 0", ALL_TO_ALL, (0,)
        yield "all_to_all 1", ALL_TO_ALL, (1,)


def _take_part(platform: Platform, index: int, rank: int, rendezvous: str) -> dict[str, Array]:
    device = platform.open(index, {"rank": rank, "world_size": 2, "rendezvous": rendezvous})
    try:
        assert device.capabilities().collectives, "a device among two ranks declares its collectives"
        group = device.communicator([0, 1])
        found = {}
        for dtype in _DTYPES:
            tensor = device.put(_parts(dtype)[rank])
            for name, method, arguments in _cases(device.capabilities().collectives):
                result = getattr(group, method)(tensor, *arguments)
                found[f"{name} {dtype}"] = device.get(result).result()
            # Inputs must not change.
            found[f"input {dtype}"] = device.get(tensor).result()
        return found
    finally:
        device.close()


def _pass_rows(platform: Platform, index: int, rank: int, rendezvous: str) -> list[Array] | None:
    """What rank 0 sends or rank 1 receives; None if the device does not declare it."""
    device = platform.open(index, {"rank": rank, "world_size": 2, "rendezvous": rendezvous})
    try:
        if not device.capabilities().passes_rows:
            return None
        group = device.communicator([0, 1])
        assert isinstance(group, PassesRows), "a device that declares `passes_rows` has it"
        sent = [np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) - rows for rows in (5, 1, 64)]
        if rank:
            likes = [device.put(np.zeros(len(one), np.int32)) for one in sent]
            return [device.get(group.receive_rows(like, 3)).result() for like in likes]
        for one in sent:
            group.send_rows(device.put(one))
        return sent
    finally:
        device.close()


def _wanted() -> dict[str, tuple[Array, Array]]:
    """Name of a result → the expected array of each rank."""
    wanted: dict[str, tuple[Array, Array]] = {}
    for dtype in _DTYPES:
        first, second = _parts(dtype)
        total, alike = first + second, {"all_gather 0": np.concatenate([first, second])}
        alike |= {"all_gather 1": np.concatenate([first, second], 1), "all_reduce": total}
        alike |= {"broadcast 0": first, "broadcast 1": second}
        wanted |= {f"{name} {dtype}": (array, array) for name, array in alike.items()}
        wanted[f"reduce_scatter {dtype}"] = (total[:2], total[2:])
        for dim in range(2):
            blocks = [np.split(part, 2, dim) for part in (first, second)]
            mixed = [np.concatenate([blocks[0][rank], blocks[1][rank]], dim) for rank in range(2)]
            wanted[f"all_to_all {dim} {dtype}"] = (mixed[0], mixed[1])
        wanted[f"input {dtype}"] = (first, second)
    return wanted
