"""Sums and gathers between processes of one machine through shared memory, for the reference operators.

Each rank has two slots and a counter. It copies its part into one slot, increments its counter, waits until every rank
has done so, and reads all slots in rank order: the sum has the same bits on every rank and in every run. The next
operation uses the other slot. The one after it can use the first slot again, because no rank begins an operation before
it has read the previous one.
"""

from __future__ import annotations

import logging
import mmap
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from headrace.errors import PlatformError
from headrace.platforms.cpu.rest_communicator import RestCommunicator
from headrace.platforms.interface import Communicator, Tensor
from headrace.platforms.torch_communicator import World, blocks

__all__ = ["WORK", "ShmCommunicator", "ShmSegment", "attach", "connect"]

_log = logging.getLogger(__name__)
_SLOT = 1 << 20
"""Bytes of one slot; larger data is sent in parts."""
WORK = 3600.0
"""Seconds that a stage of a pipeline may compute for the next one. A rank that has ended is noticed at once, one that
hangs by rank 0, which knows how long steps take (`engine/ranks/step_patience.py`) and ends it."""
_LINE = 64
"""Bytes of a cache line: every counter has a separate one, so that ranks don't slow each other down."""
_SPINS = 200
"""Reads of a counter before the thread yields the processor."""
_FOLDER = Path("/dev/shm")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


class ShmSegment:
    """The memory that all ranks share: one line per rank (its counter, its sizes), then two slots per rank."""

    def __init__(self, memory: mmap.mmap, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self._timeout = rank, size, timeout
        self._memory = memory
        self._lines = memoryview(memory)[: size * _LINE].cast("q")
        self._exchanges = 0
        self._views: dict[torch.dtype, list[list[torch.Tensor]]] = {}

    def wait_for_work(self) -> None:
        """From now on ranks wait for what others compute, and not only for their arrival."""
        self._timeout = max(self._timeout, WORK)

    @staticmethod
    def bytes(size: int) -> int:
        return size * (_LINE + 2 * _SLOT)

    def exchange(self, part: Tensor) -> list[Tensor]:
        """Every rank's part, in rank order; valid until the next but one exchange begins. `part`: flat, at most a slot.

        Raises PlatformError if a rank does not arrive in time, or has another size.
        """
        self._exchanges += 1
        count = part.numel()
        slots = self._slots(part.dtype)[self._exchanges % 2]
        slots[self.rank][:count] = part
        line, bytes_ = _LINE // 8, count * part.element_size()
        # There are two sizes, as there are two slots: a rank may be one exchange ahead.
        size_at = 1 + self._exchanges % 2
        self._lines[self.rank * line + size_at] = bytes_
        self._lines[self.rank * line] = self._exchanges  # stores are seen in order on this processor
        for rank in range(self.size):
            self._await(rank)
            if self._lines[rank * line + size_at] != bytes_:
                raise PlatformError(
                    f"cpu: rank {self.rank} shares {bytes_} bytes, but rank {rank} "
                    f"{self._lines[rank * line + size_at]}: all ranks of a group call the same collectives"
                )
        return [slot[:count] for slot in slots]

    def _await(self, rank: int) -> None:
        place, lines, turn = rank * _LINE // 8, self._lines, self._exchanges
        spins, end = 0, 0.0
        while lines[place] < turn:
            spins += 1
            if spins % _SPINS:
                continue
            time.sleep(0)
            now = time.monotonic()
            end = end or now + self._timeout
            if now > end:
                raise PlatformError(
                    f"cpu: rank {rank} has not arrived within {self._timeout:.0f} s: did its process end?"
                )

    def _slots(self, dtype: torch.dtype) -> list[list[Tensor]]:
        """Slots of a dtype, as [exchange % 2][rank]."""
        found = self._views.get(dtype)
        if found is None:
            start, count = self.size * _LINE, _SLOT // dtype.itemsize
            found = [
                [
                    torch.frombuffer(
                        self._memory, dtype=dtype, count=count, offset=start + (half * self.size + rank) * _SLOT
                    )
                    for rank in range(self.size)
                ]
                for half in range(2)
            ]
            self._views[dtype] = found
        return found


class ShmCommunicator(RestCommunicator):
    """all_reduce and all_gather over a segment, the others over gloo. Inputs are not changed."""

    def __init__(self, segment: ShmSegment, world: World, group: Sequence[int]) -> None:
        super().__init__(lambda: world.communicator(group, "gloo"))
        self._segment = segment

    def all_reduce(self, x: Tensor) -> Tensor:
        """Floats narrower than 32 bits are added in float32 and rounded once."""
        out = torch.empty(x.shape, dtype=x.dtype)
        source, target = x.reshape(-1), out.view(-1)
        wide = torch.float32 if x.is_floating_point() and x.element_size() < 4 else x.dtype
        for part in self._parts(source):
            first, *rest = self._segment.exchange(source[part])
            total = target[part].copy_(first) if wide == x.dtype else first.to(wide)
            for other in rest:
                total += other
            if wide != x.dtype:
                target[part] = total
        return out

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Every rank's x, in rank order along `dim`."""
        out = torch.empty((self._segment.size, *x.shape), dtype=x.dtype)
        source, target = x.reshape(-1), out.view(self._segment.size, -1)
        for part in self._parts(source):
            for rank, found in enumerate(self._segment.exchange(source[part])):
                target[rank, part] = found
        return torch.cat(out.unbind(0), dim)

    def send_rows(self, x: Tensor) -> None:
        """See `interface.PassesRows`."""
        self._segment.wait_for_work()
        self.all_gather(x, 0)

    def receive_rows(self, like: Tensor, width: int) -> Tensor:
        """See `interface.PassesRows`."""
        self._segment.wait_for_work()
        return self.all_gather(torch.empty(len(like), width), 0)[: len(like)]

    def all_to_all(self, x: Tensor, dim: int) -> Tensor:
        """See `interface.ExchangesBlocks`."""
        rank, size = self._segment.rank, self._segment.size
        source = torch.stack(blocks(x, dim, size))
        out = torch.empty_like(source)
        sent, received = source.flatten(1), out.flatten(1)
        for part in self._parts(sent[0], size):
            for other, found in enumerate(self._segment.exchange(sent[:, part].reshape(-1))):
                received[other, part] = found.view(size, -1)[rank]
        return torch.cat(out.unbind(0), dim)

    @staticmethod
    def _parts(flat: Tensor, blocks: int = 1) -> list[slice]:
        """Of each of so many blocks of this size, the parts that fit a slot together."""
        step = _SLOT // flat.element_size() // blocks
        return [slice(start, min(start + step, len(flat))) for start in range(0, len(flat), step)]


def connect(world: World, group: Sequence[int]) -> Communicator:
    """A communicator through shared memory if all ranks are on this machine; otherwise over gloo, with the reason in
    the log."""
    size = len(group)
    memory = attach(world, group, ShmSegment.bytes(size), _why_not())
    if memory is None:
        _log.warning("cpu: collectives over gloo: %s", _why_not() or "not all ranks share memory")
        return world.communicator(group, "gloo")
    return ShmCommunicator(ShmSegment(memory, tuple(group).index(world.rank), size, world.timeout), world, group)


def attach(world: World, group: Sequence[int], bytes_: int, why_not: str = "") -> mmap.mmap | None:
    """Zeroed memory of so many bytes that all ranks of the group share. Its file is deleted before this returns.

    None, on every rank, if they cannot share memory. `why_not`: a reason of this rank against it. Raises PlatformError
    if a rank does not arrive in time.
    """
    store = world.store(group)
    rank, size = tuple(group).index(world.rank), len(group)
    why_not = why_not or _unwritable()
    made = _offer(store, bytes_, why_not) if rank == 0 else None
    path, place = bytes(store.get("segment")).decode().split("\n")
    able = why_not == "" and path != "" and place == _machine_identity()
    memory = made or (_attach(Path(path)) if able else None)
    store.add("able", int(memory is not None))
    store.add("looked", 1)
    if rank == 0:
        _decide(store, size, world.timeout, Path(path) if path else None)
    agreed = bytes(store.get("decision")) == b"yes"
    store.add("decided", 1)
    if rank == 0:  # this rank may serve the store, which ends with its process
        _wait_for_all(store, "decided", size, world.timeout)
    return memory if agreed else None


def _why_not() -> str:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"{platform.machine()} may reorder stores"
    return _unwritable()


def _unwritable() -> str:
    return "" if os.access(_FOLDER, os.W_OK) else f"{_FOLDER} cannot be written"


def _machine_identity() -> str:
    """An identity that is the same for processes which can share memory: the machine's boot and the process
    namespace."""
    try:
        return f"{_BOOT.read_text().strip()} {_NAMESPACE.readlink()}"
    except OSError:
        return platform.node()


def _offer(store: Any, bytes_: int, why_not: str) -> mmap.mmap | None:
    """Rank 0: create the segment, readable by this user only, and publish its path."""
    if why_not:
        store.set("segment", "\n")
        return None
    handle, path = tempfile.mkstemp(prefix="headrace-", dir=_FOLDER)
    try:
        os.posix_fallocate(handle, 0, bytes_)
        memory = mmap.mmap(handle, bytes_)
    except OSError as error:
        Path(path).unlink()
        _log.warning("cpu: no shared memory of %d bytes: %s", bytes_, error)
        store.set("segment", "\n")
        return None
    finally:
        os.close(handle)
    store.set("segment", f"{path}\n{_machine_identity()}")
    return memory


def _attach(path: Path) -> mmap.mmap | None:
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return mmap.mmap(handle, 0)
    finally:
        os.close(handle)


def _decide(store: Any, size: int, timeout: float, path: Path | None) -> None:
    """Rank 0: publish the decision once all ranks have looked, and delete the file. The memory lives as long as its
    users."""
    try:
        _wait_for_all(store, "looked", size, timeout)
        store.set("decision", "yes" if store.add("able", 0) == size else "no")
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


def _wait_for_all(store: Any, what: str, size: int, timeout: float) -> None:
    end = time.monotonic() + timeout
    while store.add(what, 0) < size:
        if time.monotonic() > end:
            raise PlatformError(f"cpu: of {size} ranks not all have arrived within {timeout:.0f} s")
        time.sleep(0.001)
