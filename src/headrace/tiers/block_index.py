"""What is in a folder of blocks, as far as this process knows: its sizes, and the order of eviction."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from headrace.core.tier_record import TierRecord
from headrace.tiers.block_folder import StoredBlock

__all__ = ["BlockIndex"]

Key = tuple[str, bytes]


class BlockIndex:
    """The files of all layouts by (layout, name). Any thread may call it; `__contains__` takes no lock."""

    def __init__(self, layout: str, record: TierRecord | None = None) -> None:
        """`record`: is told which blocks of the layout come and go."""
        self._layout = layout
        self._record = record or TierRecord()
        self._record.add("disk", self._held)
        self._lock = threading.Lock()
        self._own: dict[bytes, StoredBlock] = {}
        self._others: dict[Key, StoredBlock] = {}
        self.bytes = 0
        """Of all layouts."""

    def __contains__(self, name: bytes) -> bool:
        """True if this layout's folder has the block."""
        return name in self._own

    def __len__(self) -> int:
        """Blocks of this layout."""
        return len(self._own)

    def add(self, block: StoredBlock) -> None:
        with self._lock:
            self._add(block)

    def remove(self, layout: str, name: bytes) -> None:
        with self._lock:
            self._remove(layout, name)

    def replace_part(self, layout: str, part: str, found: Iterable[StoredBlock]) -> None:
        """Take over what a subfolder holds now."""
        listed = {block.name: block for block in found}
        first = int(part, 16)
        with self._lock:
            for name in [name for name in self._names(layout) if name[0] == first and name not in listed]:
                self._remove(layout, name)
            for block in listed.values():
                self._add(block)

    def oldest(self) -> Iterator[StoredBlock]:
        """All files, the least recently used first."""
        with self._lock:
            found = [*self._own.values(), *self._others.values()]
        return iter(sorted(found, key=lambda block: block.used))

    def use(self, name: bytes, now: float) -> None:
        """Record the use of a block of this layout."""
        with self._lock:
            if name in self._own:
                self._own[name] = self._own[name]._replace(used=now)

    def _names(self, layout: str) -> Iterator[bytes]:
        if layout == self._layout:
            return iter(self._own)
        return (name for of, name in self._others if of == layout)

    def _held(self) -> list[bytes]:
        with self._lock:
            return list(self._own)

    def _add(self, block: StoredBlock) -> None:
        if block.layout == self._layout:
            old = self._own.get(block.name)
            self._own[block.name] = block
            if old is None:
                self._record.stored("disk", block.name)
        else:
            old = self._others.get((block.layout, block.name))
            self._others[block.layout, block.name] = block
        self.bytes += block.size - (0 if old is None else old.size)

    def _remove(self, layout: str, name: bytes) -> None:
        own = layout == self._layout
        old = self._own.pop(name, None) if own else self._others.pop((layout, name), None)
        if old is not None:
            self.bytes -= old.size
            if own:
                self._record.removed("disk", name)
