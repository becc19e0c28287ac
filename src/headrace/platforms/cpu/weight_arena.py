"""Memory for packed weights."""

from __future__ import annotations

import threading

import torch

from headrace.platforms.cpu.mapping import map_memory

__all__ = ["WeightArena"]

Tensor = torch.Tensor


class WeightArena:
    """Memory for many packed weights, on huge pages if the system has them. Any thread may call `take`. The memory is
    freed with the last tensor that was taken."""

    def __init__(self, chunk: int = 64 << 20) -> None:
        self._lock = threading.Lock()
        self._chunk = chunk
        self._memory: Tensor | None = None
        self._used = 0

    def take(self, size: int) -> Tensor:
        """uint8 [size], aligned to 64 bytes, zeroed."""
        with self._lock:
            return self._allocate(size)

    def _allocate(self, size: int) -> Tensor:
        if self._memory is None or self._used + size > len(self._memory):
            region = map_memory(max(size, self._chunk), "packed weights")
            self._memory, self._used = torch.frombuffer(region, dtype=torch.uint8), 0
        start, self._used = self._used, self._used + (size + 63) // 64 * 64
        return self._memory[start : start + size]
