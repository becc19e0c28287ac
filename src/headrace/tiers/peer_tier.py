"""Blocks of other engines: fetched for requests that say where their prompt was computed, and given to those that
continue a prompt of ours."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.block_source import Arrival, BlockSource, Buffer, Found, NoBlocks, TierStats
from headrace.transfer.connectors.connector import Connector, Order, Prefix
from headrace.types import Request

__all__ = ["PeerTier"]

_log = logging.getLogger(__name__)
_WEIGHT = 0.3
_MOST_UNSEALED = 512
"""Blocks that wait for the thread that seals them."""
_MOST_REASONS = 20
"""Different reasons of failures that are logged."""


@dataclass(slots=True)
class _Moving:
    """A ticket of the connector."""

    ticket: int
    """The core's."""
    began: float
    awaited: bool
    """The blocks were computed meanwhile: the time says nothing about the transfer."""
    delivered: int = 0


class PeerTier:
    """A `BlockSource` before others. A request with `remote` is served by the engine that it names, others by `below`.

    Blocks that are given are sealed by a thread of its own, because a checksum takes longer than a step may wait.
    """

    def __init__(
        self,
        connector: Connector,
        block_size: int,
        block_bytes: int,
        most_blocks: int,
        below: BlockSource | None = None,
    ) -> None:
        """`most_blocks`: so many are fetched at a time."""
        self._most_blocks = most_blocks
        self._connector, self._block_size, self._block_bytes = connector, block_size, block_bytes
        self._below: BlockSource = below or NoBlocks()
        self._moving: dict[int, _Moving] = {}
        """By the connector's ticket."""
        self._giving: set[bytes] = set()
        self._sealing: queue.SimpleQueue[tuple[bytes, Buffer] | None] = queue.SimpleQueue()
        self._sealer = threading.Thread(target=self._seal, name="seal-blocks", daemon=True)
        self._sealer.start()
        self._seconds = 0.0
        """That a block takes, as measured; 0 before the first."""
        self._hits = self._misses = self._given = self._failures = 0
        self._read_seconds = 0.0
        self._reasons: set[str] = set()

    def gives(self, name: bytes) -> bool:
        """Another engine will fetch this block: keep it for its lease. True: its bytes are needed for that."""
        if name in self._giving or self._connector.shelf.hold([name]):
            return False
        self._giving.add(name)
        return True

    def lookup(self, hashes: Sequence[bytes], request: Request) -> Found | None:
        remote = request.remote
        if remote is None:
            return self._below.lookup(hashes, request)
        # What follows is asked for when these have arrived.
        count = min(len(hashes), remote.tokens // self._block_size, self._most_blocks)
        # Blocks that are computed elsewhere for this request are worth the wait: that was weighed before.
        seconds = 0.0 if remote.awaited else self._seconds * count
        return Found(count, seconds, remote.timeout)

    def fetch(self, ticket: int, hashes: Sequence[bytes], request: Request) -> None:
        remote = request.remote
        if remote is None:
            self._below.fetch(ticket, hashes, request)
            return
        # The other engine's blocks may be others: their names follow from the tokens.
        prefix = Prefix(request.prompt, remote.tokens, request.adapter, request.salt)
        order = Order(remote.address, hashes, remote.timeout, remote.patience, remote.epoch, prefix)
        self._moving[self._connector.fetch(order)] = _Moving(ticket, time.monotonic(), remote.awaited)

    def poll(self) -> Sequence[Arrival]:
        found = list(self._below.poll())
        for one in self._connector.poll() if self._moving else ():
            moving = self._moving.get(one.ticket)
            if moving is None:
                continue
            blocks = self._connector.blocks(one.ticket)[moving.delivered : one.blocks]
            moving.delivered += len(blocks)
            self._hits += len(blocks)
            ends = one.state != "moving"
            found.append(Arrival(moving.ticket, blocks, ends))
            if ends:
                self._ended(one.ticket, moving, one.reason)
        return found

    def release(self, ticket: int) -> None:
        known = next((key for key, moving in self._moving.items() if moving.ticket == ticket), None)
        if known is None:
            self._below.release(ticket)
        else:
            del self._moving[known]
            self._connector.release(known)

    def wants(self, name: bytes, evicted: bool) -> bool:
        return self._below.wants(name, evicted)

    def offer(self, hashes: Sequence[bytes], blocks: Sequence[Buffer]) -> None:
        others: list[tuple[bytes, Buffer]] = []
        for name, block in zip(hashes, blocks, strict=True):
            if name in self._giving and self._sealing.qsize() < _MOST_UNSEALED:
                self._sealing.put((name, block))
            elif name in self._giving:
                self._giving.discard(name)
                self._connector.shelf.refuse(name)
            else:
                others.append((name, block))
        if others:
            self._below.offer([name for name, _ in others], [block for _, block in others])

    def forget(self, hashes: Sequence[bytes]) -> None:
        self._connector.shelf.forget(hashes)
        self._below.forget(hashes)

    def stats(self) -> tuple[TierStats, ...]:
        held = self._connector.shelf.stats().blocks
        own = TierStats(
            name=self._connector.name,
            blocks=held,
            bytes=held * self._block_bytes,
            hits=self._hits,
            misses=self._misses,
            stored=self._given,
            failures=self._failures,
            read_seconds=self._read_seconds,
        )
        return (own, *self._below.stats())

    def close(self) -> None:
        self._sealing.put(None)
        self._connector.close()
        self._below.close()

    def _ended(self, key: int, moving: _Moving, reason: str) -> None:
        del self._moving[key]
        self._connector.release(key)
        seconds = time.monotonic() - moving.began
        self._read_seconds += seconds
        if moving.delivered and not reason and not moving.awaited:
            measured = seconds / moving.delivered
            self._seconds = (1 - _WEIGHT) * self._seconds + _WEIGHT * measured if self._seconds else measured
        if not reason:
            return
        self._failures += 1
        if reason not in self._reasons and len(self._reasons) < _MOST_REASONS:
            self._reasons.add(reason)
            _log.warning("blocks that did not arrive are computed: %s", reason)

    def _seal(self) -> None:
        shelf = self._connector.shelf
        while (item := self._sealing.get()) is not None:
            name, block = item
            try:
                self._given += shelf.put(name, 0, self._block_size, memoryview(block).cast("B"))
            except Exception:
                _log.exception("a block could not be put where others can fetch it")
            self._giving.discard(name)
