"""Publishes the changes of the prefix cache over ZeroMQ, in the form that vLLM's engines use and routers read.

Three frames: an empty topic, the number of the batch (8 bytes, big endian, from 0), and MessagePack of
`[timestamp, events, 0]`. An event is an array that begins with its kind: `BlockStored` (hashes, hash before, token ids,
block size, null, medium, adapter), `BlockRemoved` (hashes, medium), `AllBlocksCleared`. A hash is the first 8 bytes of
ours, as a number. The medium is `GPU` for the device, `CPU` for the host's memory and `STORAGE` for disks; of the last
two hashes alone are known. On the device, blocks with a salt are left out: such routers name prompts by tokens alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec

from headrace.client.cache_feed import CacheFeed
from headrace.engine.wire import DEVICE, CacheChanged, CacheContents, CacheEvent, CacheRun
from headrace.errors import ConfigError

__all__ = ["ZmqPublisher", "check_endpoint", "import_zmq"]

_MEDIA = {"device": "GPU", "host": "CPU", "disk": "STORAGE"}
_MOST_WAITING = 100_000
"""Batches that wait for a slow subscriber; then they are dropped, as the numbers show."""


class _Event(msgspec.Struct, array_like=True, tag=True):
    pass


class BlockStored(_Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None


class BlockRemoved(_Event):
    block_hashes: list[int]
    medium: str


class AllBlocksCleared(_Event):
    pass


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int


def check_endpoint(endpoint: str) -> None:
    """Bind the address and give it back, which ends a moment later. Raises what `ZmqPublisher` raises."""
    _bound(import_zmq(), endpoint).close()


def import_zmq() -> Any:
    """The library. Raises ConfigError if it is missing."""
    try:
        import zmq
    except ImportError as error:
        raise ConfigError(f"--kv-events-endpoint needs ZeroMQ ({error}): pip install 'headrace[events]'") from None
    return zmq


def _bound(zmq: Any, endpoint: str) -> Any:
    socket: Any = zmq.Context.instance().socket(zmq.PUB)
    socket.setsockopt(zmq.SNDHWM, _MOST_WAITING)
    socket.setsockopt(zmq.LINGER, 0)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close()
        raise ConfigError(f"--kv-events-endpoint {endpoint!r}: {error}; write it as tcp://*:PORT") from None
    return socket


class ZmqPublisher:
    """Publishes until it is closed. Thread: the event loop's."""

    def __init__(self, endpoint: str, feed: CacheFeed, block_size: int) -> None:
        """Raises ConfigError if the library is missing or the address cannot be used."""
        zmq = import_zmq()
        self._feed, self._block_size = feed, block_size
        self._numbers = count()
        self._encoder = msgspec.msgpack.Encoder()
        self._socket = _bound(zmq, endpoint)
        self._known: set[bytes] = set()
        feed.open(self._take, tokens=True)

    def close(self) -> None:
        self._feed.close(self._take)
        self._socket.close()

    def _take(self, event: CacheContents | CacheChanged) -> None:
        events = list(self._contents(event) if isinstance(event, CacheContents) else self._changes(event))
        if events:
            batch = self._encoder.encode(_Batch(time.time(), events, 0))
            self._socket.send_multipart((b"", next(self._numbers).to_bytes(8, "big"), batch))

    def _contents(self, event: CacheContents) -> Iterator[BlockStored | AllBlocksCleared]:
        self._known.clear()
        yield AllBlocksCleared()
        for run in event.snapshot.runs:
            if run.tier != DEVICE:
                yield self._beside(run)
            elif not run.salted:
                yield self._stored(run)

    def _changes(self, event: CacheChanged) -> Iterator[BlockStored | BlockRemoved | AllBlocksCleared]:
        for one in event.batch.events:
            if one.tier != DEVICE:
                numbers = [_number(name) for name in one.hashes]
                yield self._beside(one) if one.kind == "stored" else BlockRemoved(numbers, _MEDIA[one.tier])
            elif one.kind == "cleared":
                self._known.clear()
                yield AllBlocksCleared()
            elif one.kind == "stored" and not one.salted:
                yield self._stored(one)
            elif one.kind == "removed":
                names = [name for name in one.hashes if name in self._known]
                self._known.difference_update(names)
                if names:
                    yield BlockRemoved([_number(name) for name in names], _MEDIA[one.tier])

    def _beside(self, run: CacheEvent | CacheRun) -> BlockStored:
        """A tier knows its blocks by their hashes alone; their tokens were told when the device stored them."""
        parent = _number(run.parent) if run.parent in self._known else None
        names, size = [_number(name) for name in run.hashes], self._block_size if run.tokens else 0
        return BlockStored(names, parent, run.tokens or [], size, None, _MEDIA[run.tier], None)

    def _stored(self, run: CacheEvent | CacheRun) -> BlockStored:
        parent = _number(run.parent) if run.parent in self._known else None
        self._known.update(run.hashes)
        names, tokens = [_number(name) for name in run.hashes], run.tokens or []
        return BlockStored(names, parent, tokens, self._block_size, None, _MEDIA[run.tier], run.adapter or None)


def _number(name: bytes) -> int:
    return int.from_bytes(name[:8], "big")
