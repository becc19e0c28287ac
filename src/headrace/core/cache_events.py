"""Tells others which blocks the radix tree holds: what it stores and removes, and a snapshot of the whole.

A block has the name of its content: the chain hash of all tokens up to its end. Nothing is hashed while nobody watches.
The name of each block in the tree is kept by block id, so splits and merges of nodes change nothing here. Only full
blocks have names; blocks of a tree that was reset have none any more.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.core.radix import BlockKey, Namespace, RadixNode, RadixTree
from headrace.core.tier_record import TierRecord

__all__ = ["DEVICE", "CacheBatch", "CacheEvent", "CacheEvents", "CacheRun", "CacheSnapshot"]

DEVICE = "device"
"""The tier of blocks in the device's own cache; others are `host` and `disk`."""


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """What happened to consecutive blocks of one prefix."""

    kind: str
    """`stored`, `removed` or `cleared`. Removing a block of the device removes all blocks behind it there; `cleared`
    removes all of the device's. In other tiers each block is for itself."""
    hashes: list[bytes]
    tier: str = DEVICE
    parent: bytes = b""
    """The hash before the first block; of blocks `stored` on the device alone."""
    tokens: list[int] | None = None
    """Those of the stored blocks, if a watcher asked for tokens."""
    adapter: str = ""
    salted: bool = False
    """Only requests with the same salt share the blocks."""


@dataclass(frozen=True, slots=True)
class CacheBatch:
    """The events since the batch before, of the next lower number."""

    epoch: int
    """A random number of the engine's process."""
    seq: int
    events: list[CacheEvent]


@dataclass(frozen=True, slots=True)
class CacheRun:
    """Consecutive blocks of one prefix; in another tier than the device's any blocks."""

    parent: bytes
    hashes: list[bytes]
    tier: str = DEVICE
    tokens: list[int] | None = None
    adapter: str = ""
    salted: bool = False


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """All blocks, parents before children, as of the batch `seq`."""

    epoch: int
    seq: int
    runs: list[CacheRun]


class CacheEvents:
    """Records the events of a radix tree while it is watched. Called by the thread that steps."""

    def __init__(
        self,
        tree: RadixTree,
        first: Callable[[str, str], bytes],
        following: Callable[[bytes, BlockKey], bytes],
        tiers: TierRecord | None = None,
    ) -> None:
        """`first(adapter, salt)` is the hash of no tokens; `following(parent, tokens)` that of the next block. `tiers`:
        what is held beside the device, under the same names."""
        self._tree, self._first, self._following = tree, first, following
        self._tiers = tiers or TierRecord()
        self._epoch = secrets.randbits(63)
        self._seq = 0
        self._names: dict[int, bytes] = {}
        """Block → the hash of its prefix."""
        self._events: list[CacheEvent] = []
        self._tokens = False

    @property
    def watched(self) -> bool:
        return self._tree.watcher is self

    def watch(self, tokens: bool = False) -> CacheSnapshot:
        """Record from now on, with tokens or without. The snapshot reflects everything recorded before."""
        self._tokens = tokens
        if not self.watched:
            self._tree.watcher = self
            self._name_all()
        # What is still recorded is part of the snapshot: its batch would only repeat it.
        self._events.clear()
        runs = [run for node in self._tree if (run := self._run(node))]
        runs += [CacheRun(b"", names, tier) for tier, names in self._tiers.watch()]
        return CacheSnapshot(self._epoch, self._seq, runs)

    def unwatch(self) -> None:
        self._tree.watcher = None
        self._tiers.unwatch()
        self._names.clear()
        self._events.clear()

    def take(self) -> CacheBatch | None:
        """The events since the last call; None if there were none."""
        self._events += [CacheEvent(kind, names, tier) for kind, tier, names in self._tiers.take()]
        if not self._events:
            return None
        events, self._events = self._events, []
        self._seq += 1
        return CacheBatch(self._epoch, self._seq, events)

    # Called by the tree

    def stored(self, node: RadixNode, key: BlockKey, block: int) -> None:
        """`block` follows the last block of `node`."""
        parent = self._end_of(node)
        if parent is None:
            return
        name = self._names[block] = self._following(parent, key)
        last = self._events[-1] if self._events else None
        if last is not None and last.kind == "stored" and last.hashes[-1] == parent:
            last.hashes.append(name)
            if last.tokens is not None:
                last.tokens.extend(key)
            return
        tokens = list(key) if self._tokens else None
        space = _namespace(node)
        self._events.append(CacheEvent("stored", [name], DEVICE, parent, tokens, space.adapter, bool(space.salt)))

    def removed(self, blocks: Iterable[int]) -> None:
        names = [name for block in blocks if (name := self._names.pop(block, None)) is not None]
        last = self._events[-1] if self._events else None
        if names and last is not None and last.kind == "removed":
            last.hashes.extend(names)
        elif names:
            self._events.append(CacheEvent("removed", names))

    def cleared(self) -> None:
        self._names.clear()
        self._events.append(CacheEvent("cleared", []))

    # Names

    def _end_of(self, node: RadixNode) -> bytes | None:
        """The hash at the end of a node; None in a tree that was reset."""
        if node.parent is not None:
            return self._names.get(node.blocks[-1])
        return None if node.retired or node.namespace is None else self._first(*node.namespace)

    def _name_all(self) -> None:
        size = self._tree.block_size
        for root in self._tree.roots.values():
            for node in self._tree.nodes(root):
                if node.parent is None:
                    continue
                name = self._end_of(node.parent)
                for key, block in zip(node.keys, node.blocks, strict=True):
                    if name is None or len(key) < size:
                        break
                    name = self._names[block] = self._following(name, key)

    def _run(self, node: RadixNode) -> CacheRun | None:
        if node.parent is None or node.blocks[0] not in self._names:
            return None
        parent = self._end_of(node.parent)
        assert parent is not None, "a block has a name only if the blocks before it have one"
        tokens = [token for key in node.keys for token in key] if self._tokens else None
        names, space = [self._names[block] for block in node.blocks], _namespace(node.parent)
        return CacheRun(parent, names, DEVICE, tokens, space.adapter, bool(space.salt))


def _namespace(node: RadixNode) -> Namespace:
    at = node
    while at.parent is not None:
        at = at.parent
    assert at.namespace is not None, "only roots of namespaces have no parent"
    return at.namespace
