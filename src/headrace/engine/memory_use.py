"""The memory that a loaded engine takes, for servers that share it among models."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from headrace.platforms.interface import Device
from headrace.types import KVLayout

__all__ = ["MemoryUse", "kv_bytes", "measure_use"]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """In bytes."""

    used: int
    """Of the host's memory on a platform of the host, else of the device's own; with the whole KV cache."""
    device_total: int
    """The device's own memory; 0 on a platform of the host."""


def kv_bytes(device: Device, layouts: tuple[KVLayout, ...], num_blocks: int) -> int:
    lanes = device.capabilities().kv_lanes
    return num_blocks * sum(layout.padded(lanes).bytes_per_block for layout in layouts)


def measure_use(device: Device, free_before: int, cache: int, ranks: int) -> MemoryUse:
    """After the load. `free_before`: of the device when it had been opened. `cache`: bytes of one rank's KV cache,
    whose pages a host only counts once they are used."""
    if device.capabilities().host_memory:
        return MemoryUse(ranks * (psutil.Process().memory_info().rss + cache), 0)
    free, total = device.memory()
    return MemoryUse(ranks * max(0, free_before - free), ranks * total)
