"""What a platform asks of the machine it runs on: memory, processor, cores."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

__all__ = ["host_memory", "host_name", "physical_cores"]

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


def physical_cores() -> int:
    """Cores that this process may use, hyper-threads not counted."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))
