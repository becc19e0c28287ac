"""Allocates the buffers of a tape from one range of memory; a buffer is released when its tensor is freed."""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Sequence

import torch

from headrace.errors import OutOfMemory
from headrace.platforms.cpu.native_kv import MappedMemory
from headrace.platforms.host import address_space

__all__ = ["TapeArena"]

_ALIGN = 256
_ROOM = 16 << 30
"""Bytes of address space, not of memory: the system provides a page when it is first touched."""
_SHARE = 4
"""With a limited address space the arena takes a fourth of what is left: weights, cache and threads need the rest."""


class TapeArena:
    """A best-fit allocator over a sorted list of holes."""

    def __init__(self, room: int | None = None) -> None:
        """`room` in bytes; None: as much as the limits of this process allow."""
        room = _room() if room is None else room
        self._room = room
        self._memory = MappedMemory(room, "a step's buffers")
        self._holes: list[tuple[int, int]] = [(0, room)]
        self._live: dict[int, tuple[int, int, weakref.ref[torch.Tensor]]] = {}
        self.used = 0
        """The highest address ever used, in bytes from the start."""

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialized tensor. Its memory is reused after the tensor is freed."""
        count = 1
        for n in shape:
            count *= n
        if not count:
            return torch.empty(tuple(shape), dtype=dtype)
        size = -(-count * dtype.itemsize // _ALIGN) * _ALIGN
        start = self._allocate(size)
        tensor = self._memory.tensor(start, tuple(shape), dtype)
        key = id(tensor)

        def release(_: object) -> None:
            self._live.pop(key)
            self._release(start, size)

        self._live[key] = (start, size, weakref.ref(tensor, release))
        return tensor

    @property
    def live(self) -> int:
        """Bytes that are allocated now."""
        return sum(size for _, size, _ in self._live.values())

    def _allocate(self, size: int) -> int:
        fits = [(hole, start) for start, hole in self._holes if hole >= size]
        if not fits:
            raise OutOfMemory(
                f"cpu: a step's buffers exceed {self._room} bytes, at one of {size}: lower max_num_batched_tokens, or "
                "raise the limit of the address space (ulimit -v) if there is one"
            )
        hole, start = min(fits)
        index = self._holes.index((start, hole))
        self._holes[index : index + 1] = [(start + size, hole - size)] if hole > size else []
        self.used = max(self.used, start + size)
        return start

    def _release(self, start: int, size: int) -> None:
        index = bisect.bisect(self._holes, (start, 0))
        if index < len(self._holes) and self._holes[index][0] == start + size:
            size += self._holes.pop(index)[1]
        if index and sum(self._holes[index - 1]) == start:
            index -= 1
            start, before = self._holes.pop(index)
            size += before
        self._holes.insert(index, (start, size))


def _room() -> int:
    space = address_space()
    return _ROOM if space is None else min(_ROOM, space[0] // _SHARE // _ALIGN * _ALIGN)
