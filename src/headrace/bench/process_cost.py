"""Memory and processor time of a server: of its process and all descendants."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from headrace.errors import ConfigError

__all__ = ["ProcessCost", "cost", "find_server", "largest_peak", "machine_seconds"]

_HERE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """Cost of a process and its living descendants.

    `peak_bytes` is the sum of the peak resident memory of each process since its start, so memory that several share
    counts for each. If the system doesn't record the peak, it is the memory that is resident now.
    """

    peak_bytes: int
    cpu_seconds: float


def find_server(url: str) -> int | None:
    """The process on this machine that listens for `url`; None if it runs elsewhere, or belongs to another user."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise ConfigError(f"--url {url}: {error}: give it as http://HOST:PORT") from error
    if parts.hostname not in _HERE:
        return None
    try:
        found = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return None
    pids = {c.pid for c in found if c.status == psutil.CONN_LISTEN and c.laddr.port == port and c.pid is not None}
    # If several processes share the socket: the one that started the others.
    return next((pid for pid in sorted(pids) if not pids & {p.pid for p in psutil.Process(pid).parents()}), None)


def cost(pid: int) -> ProcessCost:
    """The cost of a process. Raises ConfigError if there is no such process, or it may not be inspected."""
    try:
        top = psutil.Process(pid)
        family = [top, *top.children(recursive=True)]
        peak = sum(map(_peak, family))
        return ProcessCost(peak, sum(_seconds(one) for one in family))
    except psutil.Error as error:
        raise ConfigError(f"process {pid}: {error}: give --server-pid of a server that runs, or leave it out") from None


def largest_peak(pid: int) -> int:
    """Peak resident memory in bytes of the process or descendant that has the largest: of a server, the engine. Raises
    ConfigError as `cost` does."""
    try:
        top = psutil.Process(pid)
        return max(map(_peak, [top, *top.children(recursive=True)]))
    except psutil.Error as error:
        raise ConfigError(f"process {pid}: {error}") from None


def machine_seconds() -> float:
    """Processor seconds of all processes on this machine since it started."""
    times = psutil.cpu_times()
    return float(sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq")))


def _peak(process: psutil.Process) -> int:
    try:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        return next(int(row.split()[1]) << 10 for row in status.splitlines() if row.startswith("VmHWM"))
    except (OSError, StopIteration):  # Not Linux, or the process has just ended.
        return _resident(process)


def _resident(process: psutil.Process) -> int:
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(getattr(memory, "peak_wset", memory.rss))


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
