"""Blocks on a disk."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

from headrace.core.block_source import Arrival, Buffer, Found, TierStats
from headrace.core.tier_record import TierRecord
from headrace.errors import HeadraceError
from headrace.tiers.block_folder import BlockFolder, StoredBlock
from headrace.tiers.block_index import BlockIndex
from headrace.types import Request
from headrace.wording import counted

__all__ = ["DiskTier"]

_log = logging.getLogger(__name__)
_QUEUE = 1 << 27
"""Bytes of blocks that may wait to be written; further ones are not kept."""
_BUDGET, _BURST = 0.01, 0.2
"""The share of time in which blocks that were used only once are written when they leave the cache, and the seconds
that may be saved up."""
_REFRESH = 2.0
"""Seconds between two looks for what other processes have written or removed."""
_REST = 30.0
"""Seconds without writes after one has failed, and without reads after many have."""
_FAILURES = 8
"""Reads that fail one after the other before the disk is left alone."""
_PATIENCE = 2.0
_GUESS = 1 << 31
"""Bytes per second of reads, before the first one. Too many: what is never read is never measured."""
_WEIGHT = 0.1
_ROOM = 0.95
"""Share of the limit that is left after eviction."""
_LAST = 5.0
"""Seconds for the last writes at the end."""


class DiskTier:
    """A `BlockSource` on a folder. Reads and writes have a thread each. What fails is a miss and one warning, never an
    error: the folder may be full, torn, read-only, or another process's."""

    def __init__(
        self,
        folder: Path,
        limit: int,
        layout_id: bytes,
        block_bytes: int,
        block_size: int,
        record: TierRecord | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit`: bytes of all files of the folder, of all layouts. `block_bytes`: of one block's payload, which has
        `block_size` tokens. `record`: is told what comes and goes."""
        self._folder, self._limit = BlockFolder(folder, layout_id), limit
        self._block_bytes, self._tokens, self._clock = block_bytes, block_size, clock
        self._most_pending = max(8, _QUEUE // block_bytes)
        self._index = BlockIndex(self._folder.layout, record)
        self._arrivals: deque[Arrival] = deque()
        self._live: set[int] = set()
        """Tickets that were not released."""
        self._wanted: queue.SimpleQueue[tuple[int, list[bytes]] | None] = queue.SimpleQueue()
        self._offered: queue.SimpleQueue[tuple[bytes, bytes, bool] | None] = queue.SimpleQueue()
        self._pending: set[bytes] = set()
        """Blocks that wait to be written."""
        self._evicted: set[bytes] = set()
        """Those of them that `wants` took because they leave the cache."""
        self._forgotten: set[bytes] = set()
        self._reading = 0
        """Blocks that wait to be read."""
        self._busy_since: float | None = None
        """When the read that is going on began."""
        self._per_block = block_bytes / _GUESS
        """Seconds of a read."""
        self._credit, self._credit_at = _BURST, clock()
        self._no_reads_until = self._no_writes_until = 0.0
        self._failed_in_row = 0
        self._warned: set[str] = set()
        self._hits = self._misses = self._stored = self._failures = 0
        self._read_seconds = self._write_seconds = 0.0
        self._open()
        self._threads = [
            threading.Thread(target=work, name=f"disk-tier-{name}", daemon=True)
            for name, work in (("reads", self._read_all), ("writes", self._write_all))
        ]
        for thread in self._threads:
            thread.start()

    def describe(self) -> str:
        """One line for the log."""
        blocks = counted(len(self._index), "block")
        held = f"{blocks} of this model, {self._index.bytes / 1e9:.1f} of {self._limit / 1e9:.1f} GB"
        return f"KV blocks on disk: {self._folder.root} ({held})"

    # The engine's thread

    def lookup(self, hashes: Sequence[bytes], request: Request) -> Found | None:
        now = self._clock()
        stuck = self._busy_since is not None and now - self._busy_since > _PATIENCE
        if stuck or now < self._no_reads_until:
            return Found(0)
        count = sum(1 for _ in takewhile(self._index.__contains__, hashes))
        self._misses += len(hashes) - count
        seconds = (self._reading + count) * self._per_block
        return Found(count, seconds, _PATIENCE + 4 * seconds)

    def fetch(self, ticket: int, hashes: Sequence[bytes], request: Request) -> None:
        self._live.add(ticket)
        self._reading += len(hashes)
        self._wanted.put((ticket, list(hashes)))

    def poll(self) -> Sequence[Arrival]:
        if not self._arrivals:
            return ()
        return [self._arrivals.popleft() for _ in range(len(self._arrivals))]

    def release(self, ticket: int) -> None:
        self._live.discard(ticket)

    def wants(self, name: bytes, evicted: bool) -> bool:
        now = self._clock()
        if name in self._index or name in self._pending or name in self._forgotten:
            return False
        if now < self._no_writes_until or len(self._pending) >= self._most_pending:
            return False
        if evicted:
            self._credit = min(_BURST, self._credit + _BUDGET * (now - self._credit_at))
            self._credit_at = now
            if self._credit <= 0:
                return False
            self._evicted.add(name)
        return True

    def offer(self, hashes: Sequence[bytes], blocks: Sequence[Buffer]) -> None:
        for name, block in zip(hashes, blocks, strict=True):
            evicted = name in self._evicted
            self._evicted.discard(name)
            if len(self._pending) < self._most_pending and name not in self._pending and name not in self._forgotten:
                self._pending.add(name)
                self._offered.put((name, bytes(block), evicted))

    def forget(self, hashes: Sequence[bytes]) -> None:
        self._forgotten.update(hashes)
        for name in hashes:
            if name in self._index:
                self._index.remove(self._folder.layout, name)
                try:
                    self._folder.remove(self._folder.layout, name)
                except OSError as error:
                    self._fault("a block could not be removed", error)

    def stats(self) -> tuple[TierStats, ...]:
        return (
            TierStats(
                "disk",
                len(self._index),
                self._index.bytes,
                self._hits,
                self._misses,
                self._stored,
                self._failures,
                self._read_seconds,
                self._write_seconds,
            ),
        )

    def close(self) -> None:
        """Write what waits, as far as that takes no more than some seconds."""
        self._live.clear()
        self._wanted.put(None)
        self._offered.put(None)
        for thread in self._threads:
            thread.join(_LAST)

    # The thread that reads

    def _read_all(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            ticket, hashes = wanted
            for at, name in enumerate(hashes):
                block = self._read(name) if ticket in self._live else None
                self._reading -= 1
                ends = block is None or at == len(hashes) - 1
                self._arrivals.append(Arrival(ticket, [] if block is None else [block], ends))
                if ends:
                    self._reading -= len(hashes) - 1 - at
                    break

    def _read(self, name: bytes) -> Buffer | None:
        """A block; None if it is missing or not sound."""
        if name in self._forgotten:
            return None
        self._busy_since = self._clock()
        start = time.perf_counter()
        try:
            block = self._folder.read(name, self._block_bytes)
        except FileNotFoundError:
            self._index.remove(self._folder.layout, name)
            return None
        except Exception as error:
            self._index.remove(self._folder.layout, name)
            self._spoilt(name, error)
            return None
        finally:
            self._busy_since = None
        elapsed = time.perf_counter() - start
        self._per_block += _WEIGHT * (elapsed - self._per_block)
        self._read_seconds += elapsed
        self._hits += 1
        self._failed_in_row = 0
        self._index.use(name, time.time())
        return block

    def _spoilt(self, name: bytes, error: Exception) -> None:
        """A file could not be read, or is not what it should be: it is removed."""
        self._failed_in_row += 1
        if self._failed_in_row >= _FAILURES:
            self._no_reads_until = self._clock() + _REST
        self._fault("a block was dropped", error)
        try:
            self._folder.remove(self._folder.layout, name)
        except OSError as problem:
            self._fault("a block could not be removed", problem)

    # The thread that writes

    def _write_all(self) -> None:
        seen: dict[tuple[str, str], int] = {}
        looked = self._clock()
        while True:
            try:
                offered = self._offered.get(timeout=_REFRESH)
                if offered is None:
                    return
                self._write(*offered)
            except queue.Empty:
                pass
            if self._clock() - looked >= _REFRESH:
                self._refresh(seen)
                looked = self._clock()

    def _write(self, name: bytes, block: bytes, evicted: bool) -> None:
        start = time.perf_counter()
        try:
            if self._clock() >= self._no_writes_until:
                size = self._folder.write(name, self._tokens, block)
                self._index.add(StoredBlock(self._folder.layout, name, size, time.time()))
                self._stored += 1
                if self._index.bytes > self._limit:
                    self._evict()
        except IsADirectoryError as error:
            # Something else stands in this block's place: the others can be written.
            self._forgotten.add(name)
            self._fault("a block's file is a folder", error)
        except OSError as error:
            self._no_writes_until = self._clock() + _REST
            self._fault("a block could not be written, and none is for a while", error)
        finally:
            self._pending.discard(name)
        elapsed = time.perf_counter() - start
        self._write_seconds += elapsed
        if evicted:
            self._credit -= elapsed

    def _evict(self) -> None:
        """Remove the least recently used files. If another process does, this one looks at the result later."""
        with self._folder.alone() as alone:
            if not alone:
                return
            for block in self._index.oldest():
                if self._index.bytes <= _ROOM * self._limit:
                    return
                if self._folder.remove(block.layout, block.name, block.used):
                    self._index.remove(block.layout, block.name)
                else:
                    self._index.add(block._replace(used=time.time()))

    def _refresh(self, seen: dict[tuple[str, str], int]) -> None:
        """Learn what other processes have written and removed, of all layouts: together they may be too much. `seen`:
        when each subfolder had changed last."""
        try:
            for layout, part, changed in self._folder.parts():
                if seen.get((layout, part)) != changed:
                    self._index.replace_part(layout, part, self._folder.scan_part(layout, part))
                    seen[layout, part] = changed
            if self._index.bytes > self._limit:
                self._evict()
        except (OSError, ValueError) as error:
            self._fault("the folder could not be read", error)

    # Parts

    def _open(self) -> None:
        try:
            for block in self._folder.scan():
                self._index.add(block)
        except OSError as error:
            self._fault("the folder could not be read", error)
        try:
            self._folder.prepare()
        except OSError as error:
            self._no_writes_until = float("inf")
            self._fault("nothing can be written", error)

    def _fault(self, what: str, error: Exception) -> None:
        """Count a failure; each kind is logged once."""
        self._failures += 1
        kind = f"{what}: {type(error).__name__}"
        if kind not in self._warned:
            self._warned.add(kind)
            detail = str(error) if isinstance(error, OSError | HeadraceError) else repr(error)
            _log.warning("KV blocks on disk, %s: %s: %s", self._folder.root, what, detail)
