"""Facts about the host: memory, processor, cores."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

import psutil

from headrace.platforms.control_group import memory_limits, processor_limits

__all__ = ["address_space", "cpu_quota", "host_memory", "host_name", "physical_cores"]

_PROC = Path("/proc")
_CPUINFO = Path("/proc/cpuinfo")
_PAGE = 4096
_STRICT = "2"
"""Value of vm.overcommit_memory with which every writable mapping counts, touched or not."""


def host_memory(proc: Path = _PROC) -> tuple[int, int]:
    """(free, total) bytes for this process: those of the machine, within the limits of control groups and address
    space."""
    memory = psutil.virtual_memory()
    limits = [(limit - used, limit) for limit, used in memory_limits(proc)]
    space = address_space(proc)
    if space is not None:
        limits.append(space)
    free = min([int(memory.available), *(left for left, _ in limits)])
    return max(free, 0), min([int(memory.total), *(limit for _, limit in limits)])


def address_space(proc: Path = _PROC) -> tuple[int, int] | None:
    """(left, limit) bytes of memory that this process may map, touched or not; None if there is no limit.

    Limits: `ulimit -v`, `ulimit -d`, and strict overcommit, under which all processes share one limit.
    """
    found = []
    for name, field in (("RLIMIT_AS", 0), ("RLIMIT_DATA", 5)):
        limit = _resource_limit(name)
        if limit is not None:
            found.append((limit - _mapped(proc, field), limit))
    if _first_line(proc / "sys/vm/overcommit_memory") == _STRICT:
        fields = dict(line.split(":", 1) for line in _text(proc / "meminfo").splitlines() if ":" in line)
        limit, used = (int(fields.get(name, "0").split()[0]) << 10 for name in ("CommitLimit", "Committed_AS"))
        found.append((limit - used, limit))
    return min(((max(left, 0), limit) for left, limit in found), default=None)


def host_name(cpuinfo: Path = _CPUINFO) -> str:
    """The name that the processor reports."""
    lines = _text(cpuinfo).splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cpu_quota(proc: Path = _PROC) -> int | None:
    """The number of processors that the limits of the control groups allow, rounded up; None if there is no limit."""
    limits = processor_limits(proc)
    return math.ceil(min(limits)) if limits else None


def physical_cores() -> int:
    """The number of physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed, cpu_quota() or allowed))


def _resource_limit(name: str) -> int | None:
    try:
        import resource
    except ImportError:  # Windows has none.
        return None
    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else int(soft)


def _mapped(proc: Path, field: int) -> int:
    """Bytes of /proc/self/statm: field 0 counts all mappings, 5 data and stack."""
    words = _first_line(proc / "self/statm").split()
    return int(words[field]) * _page() if len(words) > field else 0


def _page() -> int:
    return os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else _PAGE


def _first_line(path: Path) -> str:
    return _text(path).partition("\n")[0].strip()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
