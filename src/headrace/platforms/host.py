"""What a platform asks of the machine it runs on: memory, processor, cores."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

__all__ = ["cpu_quota", "host_memory", "host_name", "physical_cores"]

_CGROUP = Path("/sys/fs/cgroup")
_CPUINFO = Path("/proc/cpuinfo")


def host_memory(cgroup: Path = _CGROUP) -> tuple[int, int]:
    """(free, total) bytes, a container's limit respected."""
    memory = psutil.virtual_memory()
    free, total = int(memory.available), int(memory.total)
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):  # no container, or "max"
        return free, total
    return min(free, max(limit - used, 0)), min(total, limit)


def host_name(cpuinfo: Path = _CPUINFO) -> str:
    """The processor as it calls itself."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cpu_quota(cgroup: Path = _CGROUP) -> int | None:
    """Processors that a container's limit is worth, rounded up; None where it has none. Control groups of version 2 or 1."""
    try:
        unified = cgroup / "cpu.max"
        if unified.exists():
            limit, period = unified.read_text().split()
        else:
            limit = (cgroup / "cpu/cpu.cfs_quota_us").read_text()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text()
        return -(-int(limit) // int(period)) if int(limit) > 0 else None
    except (OSError, ValueError):  # no container, or "max"
        return None


def physical_cores() -> int:
    """Cores that this process may use, hyper-threads not counted."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed, cpu_quota() or allowed))
