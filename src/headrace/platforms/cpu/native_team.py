"""The team of threads that runs the native kernels. Jobs run in the order of submission; a ticket reports when one is
done."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from headrace.errors import DeviceLost, PlatformError
from headrace.platforms.cpu.native import HostCopy, Library
from headrace.platforms.cpu.native_handle import TeamHandle
from headrace.platforms.cpu.numa import by_node
from headrace.platforms.host import address_space, cpu_quota

__all__ = ["NUM_SIZES", "Team", "TicketPending", "allowed_cores"]

NUM_SIZES = 8
Sizes = ctypes.c_int32 * NUM_SIZES
_SCRATCH, _SHARED = 64 << 20, 1 << 30
_SHARED_PART = 16
"""With a limited address space the team shares a sixteenth of what is left: kernels then need more iterations."""
_SPIN_NS = 50_000
_UNKNOWN = 2**64 - 1
"""What `hr_busy_at` returns for a time that it doesn't have."""
_ERRORS = {
    1: "a kernel needs more scratch memory than the team has",
    2: "a kernel got an index out of range",
    3: "the process was forked after the device was opened, and only the parent has its threads",
}
_PEERS = {
    3: "has ended",
    4: "has not arrived in time",
    5: "shares another number of bytes: all ranks of a group call the same collectives",
    6: "has failed",
}
"""Errors that a collective reports about another rank: a thousand times these, plus the rank."""


def allowed_cores() -> list[int]:
    """One logical CPU of each physical core that this process may use. No more than a container's limit allows, because
    a thread that has used up its share delays all threads that wait for it."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    cores: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings = path.read_text().strip()
        except OSError:
            siblings = str(cpu)
        cores.setdefault(siblings, cpu)
    return list(cores.values())[: cpu_quota()]


class Team:
    """Threads, one native queue, scratch memory. Methods may be called from any Python thread; call `close` last.

    `threads` None: one per physical core. `share` (rank, ranks): so many teams divide the cores. Threads are pinned if
    they take every core of the team (`cpus` is the CPU of each thread; otherwise empty). The system places the threads
    of a smaller team, so that two of them don't share a core while others are idle.
    """

    def __init__(self, library: Library, threads: int | None = None, share: tuple[int, int] = (0, 1)) -> None:
        rank, ranks = share
        every = by_node(allowed_cores())
        most = max(1, len(every) // ranks)
        cores = every[rank * most : (rank + 1) * most]
        self.threads = threads or most
        self.library = library
        # With a limit the process may run on any of the cores: the system chooses.
        pin = self.threads == len(cores) and cpu_quota() is None
        self.cpus: tuple[int, ...] = tuple(cores) if pin else ()
        cpus = (ctypes.c_int32 * self.threads)(*(cores if pin else [-1] * self.threads))
        # A team larger than the machine must not spin: the threads that it waits for need the cores.
        spin = _SPIN_NS if self.threads * ranks <= len(every) else 0
        space = address_space()
        shared = _SHARED if space is None else min(_SHARED, max(_SCRATCH, space[0] // _SHARED_PART // 4096 * 4096))
        handle = library.functions.hr_team_new(self.threads, cpus, _SCRATCH, shared, spin)
        if not handle:
            needed = self.threads * _SCRATCH + shared
            left = "" if space is None else f" of {space[0]} that its limit leaves"
            raise PlatformError(
                f"cpu: cannot start {self.threads} threads: lower --threads or raise the process limits (ulimit -u, "
                f"ulimit -v); they need {needed} bytes of address space{left}, and their stacks"
            )
        self._native = TeamHandle(library.functions, handle)
        self._kept = self._native.kept
        self._lock = threading.Lock()
        self.latest = 0
        """The latest ticket."""

    def run_kernel(self, function: int, args: ctypes.Structure, sizes: Sequence[int] = (), keep: Any = None) -> int:
        """Submit one kernel and return its ticket. The arguments are copied; `keep` keeps alive what they point to."""
        packed = Sizes(*sizes)
        size = ctypes.sizeof(args)
        ticket = self.library.functions.hr_submit_kernel(self._open(), function, ctypes.byref(args), size, packed)
        return self._keep(ticket, keep)

    def run_tape(self, tape: int | None, sizes: Any, copies: Any, count: int, keep: Any) -> int:
        """Submit `count` copies, then the tape if there is one."""
        return self._keep(self.library.functions.hr_submit_tape(self._open(), tape, sizes, copies, count), keep)

    def run_copy(self, dst: int, src: int, size: int, keep: Any) -> int:
        return self.run_tape(None, None, ctypes.byref(HostCopy(dst, src, size)), 1, keep)

    def done(self, ticket: int) -> bool:
        return bool(self.library.functions.hr_done(self._native.value, ticket))

    def wait(self, ticket: int) -> None:
        """Block until the job is done, without the interpreter's lock. Raises PlatformError if a kernel failed."""
        error = self.library.functions.hr_wait(self._native.value, ticket)
        if error:
            raise _failure(int(error))

    @property
    def busy_seconds(self) -> float:
        """Seconds during which the team had work, since it was made."""
        return float(self.library.functions.hr_busy_ns(self._native.value)) / 1e9

    def busy_until(self, ticket: int) -> float | None:
        """The same when the ticket's job was done; None if it isn't, or was done some thousand jobs ago."""
        found = int(self.library.functions.hr_busy_at(self._native.value, ticket))
        return None if found == _UNKNOWN else found / 1e9

    def close(self) -> None:
        """Finish all submitted jobs and end the threads. Calling it twice is harmless."""
        self._native.close()

    def _open(self) -> int:
        if self._native.closed:
            raise PlatformError("cpu: the device has been closed")
        return self._native.value

    def _keep(self, ticket: int, what: Any) -> int:
        if not ticket:
            raise PlatformError(
                "cpu: the device accepts no work: it was closed, this process was forked, or memory is short"
            )
        with self._lock:
            self.latest = max(self.latest, int(ticket))
            if what is not None:
                self._kept.append((ticket, what))
            while len(self._kept) > 1 and self.done(self._kept[0][0]):
                self._kept.popleft()
        return int(ticket)


class TicketPending:
    """A host copy behind a ticket."""

    def __init__(self, team: Team, ticket: int, array: npt.NDArray[Any]) -> None:
        self._team, self._ticket, self._array = team, ticket, array

    def done(self) -> bool:
        return self._team.done(self._ticket)

    def result(self) -> npt.NDArray[Any]:
        self._team.wait(self._ticket)
        return self._array


def _failure(error: int) -> PlatformError:
    kind, rank = divmod(error, 1000)
    if kind in _PEERS:
        return DeviceLost(f"cpu: rank {rank} {_PEERS[kind]}; start the engine again")
    return PlatformError(f"cpu: {_ERRORS.get(error, f'error {error}')}: the device must be opened again")
