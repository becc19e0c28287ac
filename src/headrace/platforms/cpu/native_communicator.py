"""Collectives of the native device: kernels over memory that the ranks share, run at once or recorded onto a tape.

Layout of the memory and the order of sums: `kernels/collective/segment.h`. A rank that has ended is detected within 10
ms, a rank that hangs after the world's timeout. In both cases the step fails with DeviceLost on every rank.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Callable, Sequence

import torch

from headrace.errors import PlatformError
from headrace.platforms.cpu.native_args import FIXED, Dim, ExchangeArgs, GatherArgs, ReduceArgs, SegmentArgs
from headrace.platforms.cpu.native_launch import Launcher
from headrace.platforms.cpu.native_linear import HasLauncher
from headrace.platforms.cpu.native_team import allowed_cores
from headrace.platforms.cpu.rest_communicator import RestCommunicator
from headrace.platforms.cpu.shm_communicator import WORK, attach
from headrace.platforms.interface import Tensor
from headrace.platforms.torch_communicator import TorchCommunicator, World, blocks

__all__ = ["SLOT", "NativeCommunicator", "NativeSegment", "connect"]

SLOT = 1 << 20
"""Bytes of a slot; larger data is sent in parts."""
_LINE, _PID_AT = 128, 12
_SPIN_NS = 200_000
_SUMS = {torch.float32: 0, torch.float64: 1, torch.int32: 2, torch.int64: 3}
_WIDE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


class NativeSegment:
    """This rank's view of the shared memory. A tape that uses it keeps it alive."""

    def __init__(self, memory: mmap.mmap, rank: int, size: int, timeout: float, spin: bool) -> None:
        self.rank, self.size = rank, size
        self._memory = memory
        self._start = ctypes.c_char.from_buffer(memory)
        ctypes.c_int32.from_buffer(memory, rank * _LINE + _PID_AT).value = os.getpid()
        self.args = SegmentArgs(
            ctypes.addressof(self._start), SLOT, int(timeout * 1e9), _SPIN_NS if spin else 0, rank, size
        )

    def wait_for_work(self) -> None:
        """From now on ranks wait for what others compute, and not only for their arrival."""
        self.args.timeout_ns = max(self.args.timeout_ns, int(WORK * 1e9))

    @staticmethod
    def bytes(size: int) -> int:
        return size * (_LINE + 2 * SLOT)


class NativeCommunicator(RestCommunicator):
    """All collectives, and rows for the next stage; a tape records all but `reduce_scatter` and `broadcast`. Inputs are
    not changed."""

    def __init__(
        self,
        segment: NativeSegment,
        owner: HasLauncher,
        rest: Callable[[], TorchCommunicator],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`check` is called before an `all_to_all`: it raises if the library has other arguments."""
        super().__init__(rest)
        self._segment, self._owner, self._check = segment, owner, check

    def all_reduce(self, x: Tensor) -> Tensor:
        """Floats narrower than 32 bits are added in float32 and rounded once. Ranks are added in their order."""
        launcher = self._owner.launcher
        with launcher.own():
            wide = x.to(_WIDE.get(x.dtype, x.dtype)).contiguous()
            if wide.dtype not in _SUMS:
                raise PlatformError(f"cpu: all_reduce of {x.dtype}: there are {', '.join(map(str, [*_SUMS, *_WIDE]))}")
            rows, width = _rows(launcher, x)
            y = launcher.empty(rows, x.shape, wide.dtype)
            args = ReduceArgs(self._segment.args, wide.data_ptr(), y.data_ptr(), width, rows, _SUMS[wide.dtype])
            launcher.call("all_reduce", args, (wide, y, self._segment))
            return y.to(x.dtype)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Every rank's x, in rank order along `dim`."""
        launcher, size = self._owner.launcher, self._segment.size
        dim %= x.dim()
        with launcher.own():
            plain = x.contiguous()
            rows = launcher.rows(x)
            shape = (*x.shape[:dim], size * x.shape[dim], *x.shape[dim + 1 :])
            if dim == 0:
                bytes_, out = math.prod(x.shape[1:]) * x.element_size(), Dim(rows.dim, rows.fixed * size)
            elif rows.dim == FIXED:
                bytes_, out = math.prod(x.shape[dim:]) * x.element_size(), rows
                rows = Dim(FIXED, math.prod(x.shape[:dim]))
            elif dim == 1:
                bytes_, out = math.prod(x.shape[1:]) * x.element_size(), rows
            else:
                raise PlatformError(f"cpu: all_gather of a step's rows along dimension {dim}: 0 and 1 are recorded")
            y = launcher.empty(out, shape, x.dtype)
            args = GatherArgs(self._segment.args, plain.data_ptr(), y.data_ptr(), bytes_, rows, int(dim == 0))
            launcher.call("all_gather", args, (plain, y, self._segment))
            return y

    def send_rows(self, x: Tensor) -> None:
        """See `interface.PassesRows`."""
        self._segment.wait_for_work()
        self.all_gather(x, 0)

    def receive_rows(self, like: Tensor, width: int) -> Tensor:
        """See `interface.PassesRows`. All rows of the first rank stand before those of this one, which mean nothing."""
        self._segment.wait_for_work()
        launcher, rows = self._owner.launcher, self._owner.launcher.rows(like)
        both = self.all_gather(launcher.empty(rows, (len(like), width)), 0)
        with launcher.own():
            received: Tensor = both[: len(like)]
        received.hr_dim, received.hr_both = rows, both
        return received

    def all_to_all(self, x: Tensor, dim: int) -> Tensor:
        """See `interface.ExchangesBlocks`."""
        self._check()
        launcher, size = self._owner.launcher, self._segment.size
        dim %= x.dim()
        with launcher.own():
            block = math.prod(blocks(x, dim, size)[0].shape[dim:]) * x.element_size()
            plain, rows = x.contiguous(), launcher.rows(x)
            if rows.dim == FIXED:
                before = Dim(FIXED, math.prod(x.shape[:dim]))
            elif dim == 1:
                before = rows
            else:
                raise PlatformError(f"cpu: all_to_all of a step's rows along dimension {dim}: 1 is recorded")
            y = launcher.empty(rows, x.shape, x.dtype)
            args = ExchangeArgs(self._segment.args, plain.data_ptr(), y.data_ptr(), block, before)
            launcher.call("all_to_all", args, (plain, y, self._segment))
            return y


def _rows(launcher: Launcher, x: Tensor) -> tuple[Dim, int]:
    """(number of rows as a kernel argument, elements per row)"""
    if not x.dim():
        return Dim(FIXED, 1), 1
    return launcher.rows(x), math.prod(x.shape[1:])


def connect(
    world: World, group: Sequence[int], owner: HasLauncher, threads: int, check: Callable[[], None] = lambda: None
) -> NativeCommunicator:
    """The communicator of a group. `check`: see `NativeCommunicator`.

    Raises PlatformError if the ranks don't share memory.
    """
    rank, size = tuple(group).index(world.rank), len(group)
    memory = attach(world, group, NativeSegment.bytes(size))
    if memory is None:
        raise PlatformError(
            f"cpu: {size} ranks don't share memory: start them on one machine and in one container with "
            f"{NativeSegment.bytes(size)} bytes of /dev/shm, or set HEADRACE_NATIVE=0 for collectives over the network"
        )
    segment = NativeSegment(memory, rank, size, world.timeout, spin=size * threads <= len(allowed_cores()))
    return NativeCommunicator(segment, owner, lambda: world.communicator(group, "gloo"), check)
