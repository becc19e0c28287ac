"""Sealed blocks in memory that a transport can reach: what a process gives to others.

A block lies in a slot of a fixed size, header first. It is kept for its lease; after that it gives way to a newer one,
the least recently used first. A slot is not written while a transfer reads it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.transfer.sealed import HEADER_BYTES, seal

__all__ = ["Shelf", "ShelfStats", "ShelvedBlock"]

_MOST_REFUSALS = 4096


@dataclass(slots=True, eq=False)
class ShelvedBlock:
    """A sealed block in its slot."""

    chain_hash: bytes
    offset: int
    """Of its first byte in the shelf's memory."""
    until: float
    """End of its lease."""
    readers: int = 0
    forgotten: bool = False
    """It is not found any more, and its slot is free once nobody reads it."""


@dataclass(frozen=True)
class ShelfStats:
    blocks: int
    leased: int
    read: int
    """Blocks that a transfer reads at this moment."""
    refused: int
    """Blocks that found no slot, since the start."""


class Shelf:
    """Blocks by chain hash. Any thread may call it."""

    def __init__(
        self,
        memory: memoryview,
        slot_bytes: int,
        layout_id: bytes,
        epoch: int,
        lease: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`memory`: bytes for as many slots of `slot_bytes` as fit."""
        self._memory, self._slot_bytes = memory, slot_bytes
        self._layout_id, self._epoch, self._lease, self._clock = layout_id, epoch, lease, clock
        self._free = list(range(0, len(memory) - slot_bytes + 1, slot_bytes))[::-1]
        self._blocks: OrderedDict[bytes, ShelvedBlock] = OrderedDict()
        """The least recently used first."""
        self._changed = threading.Condition()
        self._refused = 0
        self._refusals: OrderedDict[bytes, None] = OrderedDict()
        """The last blocks that found no slot."""
        self._closed = False

    def put(self, chain_hash: bytes, index: int, tokens: int, payload: memoryview) -> bool:
        """Seal a block and keep it for a lease; a block that is there already gets a new lease. False: all slots are
        leased or read. Raises ValueError for a payload of another size than a slot's."""
        if payload.nbytes != self._slot_bytes - HEADER_BYTES:
            wanted = self._slot_bytes - HEADER_BYTES
            raise ValueError(f"a block of this shelf has {wanted} bytes of payload, got {payload.nbytes}")
        with self._changed:
            known = self._blocks.get(chain_hash)
            if known is not None:
                self._use(known)
                return True
            offset = self._slot()
            if offset is None:
                self._refuse(chain_hash)
                return False
            self._refusals.pop(chain_hash, None)
            # Nobody knows the slot before the block is sealed.
        header = seal(self._layout_id, chain_hash, index, tokens, payload, self._epoch)
        self._memory[offset : offset + HEADER_BYTES] = header.pack()
        self._memory[offset + HEADER_BYTES : offset + self._slot_bytes] = payload.cast("B")
        with self._changed:
            block = self._blocks.setdefault(chain_hash, ShelvedBlock(chain_hash, offset, 0.0))
            if block.offset != offset:
                self._free.append(offset)
            self._use(block)
            self._changed.notify_all()
        return True

    def refuse(self, chain_hash: bytes) -> None:
        """This block will not come: nobody need wait for it."""
        with self._changed:
            self._refuse(chain_hash)

    def hold(self, hashes: Sequence[bytes]) -> int:
        """Begin a new lease of these blocks; returns how many of the first of them are there."""
        with self._changed:
            for count, chain_hash in enumerate(hashes):
                block = self._blocks.get(chain_hash)
                if block is None:
                    return count
                self._use(block)
            return len(hashes)

    def take(self, chain_hash: bytes, wait: float = 0.0) -> ShelvedBlock | None:
        """A block, which stays in its slot until `give_back`; None if it does not come within `wait` seconds."""
        end = self._clock() + wait
        with self._changed:
            while (block := self._blocks.get(chain_hash)) is None:
                left = end - self._clock()
                if self._closed or left <= 0 or chain_hash in self._refusals:
                    return None
                self._changed.wait(left)
            block.readers += 1
            self._blocks.move_to_end(chain_hash)
            return block

    def give_back(self, block: ShelvedBlock) -> None:
        with self._changed:
            block.readers -= 1
            if block.forgotten and not block.readers:
                self._free.append(block.offset)

    def sealed(self, block: ShelvedBlock) -> memoryview:
        """Header and payload of a block that was taken."""
        return self._memory[block.offset : block.offset + self._slot_bytes]

    def forget(self, hashes: Sequence[bytes]) -> None:
        """Remove these blocks: their numbers may be invalid."""
        with self._changed:
            for chain_hash in hashes:
                block = self._blocks.pop(chain_hash, None)
                if block is not None:
                    block.forgotten = True
                    if not block.readers:
                        self._free.append(block.offset)

    def stats(self) -> ShelfStats:
        now = self._clock()
        with self._changed:
            blocks = self._blocks.values()
            leased, read = sum(block.until > now for block in blocks), sum(block.readers for block in blocks)
            return ShelfStats(len(blocks), leased, read, self._refused)

    def close(self) -> None:
        """Nobody waits for a block any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _refuse(self, chain_hash: bytes) -> None:
        self._refused += 1
        self._refusals[chain_hash] = None
        while len(self._refusals) > _MOST_REFUSALS:
            self._refusals.popitem(last=False)
        self._changed.notify_all()

    def _use(self, block: ShelvedBlock) -> None:
        block.until = self._clock() + self._lease
        self._blocks.move_to_end(block.chain_hash)

    def _slot(self) -> int | None:
        if not self._free:
            now = self._clock()
            old = next((b for b in self._blocks.values() if b.until <= now and not b.readers), None)
            if old is not None:
                self._remove(old)
        return self._free.pop() if self._free else None

    def _remove(self, block: ShelvedBlock) -> None:
        del self._blocks[block.chain_hash]
        self._free.append(block.offset)
