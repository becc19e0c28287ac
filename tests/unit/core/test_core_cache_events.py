"""Events of the prefix cache: whoever follows them knows what the radix tree holds."""

from __future__ import annotations

import random
from functools import partial

import pytest

from headrace.core.block_pool import BlockPool
from headrace.core.cache_events import CacheBatch, CacheEvents, CacheSnapshot
from headrace.core.radix import BlockKey, Namespace, RadixNode, RadixTree
from headrace.transfer.chain import chain, first_hash, next_hash

LAYOUT = b"layout"


class Mirror:
    """What follows from a snapshot and the events behind it: blocks with the hash before each."""

    def __init__(self, snapshot: CacheSnapshot) -> None:
        self.epoch, self.seq = snapshot.epoch, snapshot.seq
        self.blocks: dict[bytes, bytes] = {}
        self.tokens: dict[bytes, tuple[int, ...]] = {}
        for run in snapshot.runs:
            self._store(run.parent, run.hashes, run.tokens)

    def follow(self, batch: CacheBatch | None) -> None:
        if batch is None:
            return
        assert (batch.epoch, batch.seq) == (self.epoch, self.seq + 1)
        self.seq = batch.seq
        for event in batch.events:
            if event.kind == "stored":
                self._store(event.parent, event.hashes, event.tokens)
            elif event.kind == "removed":
                for name in event.hashes:
                    del self.blocks[name]
            else:
                self.blocks.clear()

    def _store(self, parent: bytes, names: list[bytes], tokens: list[int] | None) -> None:
        for at, name in enumerate(names):
            self.blocks[name] = parent
            if tokens is not None:
                self.tokens[name] = tuple(tokens[2 * at : 2 * at + 2])
            parent = name


class Garden:
    """A tree with blocks of two tokens, and sequences that come and go."""

    def __init__(self, blocks: int = 30) -> None:
        self.pool = BlockPool(blocks, 2)
        self.tree = RadixTree(self.pool)
        self.events = CacheEvents(self.tree, partial(first_hash, LAYOUT), next_hash)
        self.locked: list[RadixNode] = []

    def put(self, namespace: Namespace, tokens: list[int]) -> None:
        keys: list[BlockKey] = [tuple(tokens[at : at + 2]) for at in range(0, len(tokens) - 1, 2)]
        match = self.tree.match_prefix(self.tree.root(namespace), keys, 0, len(keys))
        node = self.tree.split(match)
        self.tree.lock(node)
        for key in keys[match.depth :]:
            if not self.pool.free and not self.tree.evict():
                break
            node = self.tree.insert(node, key, self.pool.allocate())
        self.locked.append(node)

    def put_partial(self, tokens: list[int]) -> None:
        if self.locked and (self.pool.free or self.tree.evict()):
            block = self.pool.allocate()
            if not self.tree.insert_partial(self.locked[-1], tuple(tokens[:1]), block):
                self.pool.release([block])

    def truth(self) -> dict[bytes, bytes]:
        """Block → the hash before it, read from the tree alone."""
        found: dict[bytes, bytes] = {}
        for namespace, root in self.tree.roots.items():
            first = first_hash(LAYOUT, namespace.adapter, namespace.salt)
            for node in self.tree.nodes(root):
                path: list[BlockKey] = []
                at: RadixNode | None = node
                while at is not None:
                    path[:0] = at.keys
                    at = at.parent
                names = [first, *chain(first, (key for key in path if len(key) == 2))]
                found.update(zip(names[1:], names, strict=False))
        return found


@pytest.mark.parametrize("seed", range(40))
def test_events_behind_a_snapshot_lead_to_the_tree(seed: int) -> None:
    draw = random.Random(seed)
    garden = Garden()
    mirror: Mirror | None = None
    spaces = [Namespace("", ""), Namespace("a", ""), Namespace("", "salt")]
    for _ in range(300):
        what = draw.random()
        if what < 0.4 and garden.pool.free:
            garden.put(draw.choice(spaces), [draw.randrange(3) for _ in range(draw.randrange(2, 12))])
        elif what < 0.7 and garden.locked:
            garden.tree.unlock(garden.locked.pop(draw.randrange(len(garden.locked))))
        elif what < 0.8:
            garden.put_partial([draw.randrange(3)])
        elif what < 0.9:
            garden.tree.evict()
        elif what < 0.92:
            garden.tree.reset()
        elif what < 0.95 or mirror is None:
            mirror = Mirror(garden.events.watch(draw.random() < 0.5))
        elif what < 0.96:
            garden.events.unwatch()
            mirror = None
        if mirror is not None and draw.random() < 0.6:
            mirror.follow(garden.events.take())
            assert mirror.blocks == garden.truth()


def test_tokens_come_if_asked_for() -> None:
    garden = Garden()
    garden.put(Namespace("", ""), [1, 2, 3, 4])
    mirror = Mirror(garden.events.watch(tokens=True))
    garden.put(Namespace("", ""), [1, 2, 3, 4, 5, 6])
    mirror.follow(garden.events.take())
    first = first_hash(LAYOUT)
    assert [mirror.tokens[name] for name in chain(first, [(1, 2), (3, 4), (5, 6)])] == [(1, 2), (3, 4), (5, 6)]
    assert garden.events.watch().runs[0].tokens is None


def test_blocks_that_follow_each_other_are_one_event() -> None:
    garden = Garden()
    garden.events.watch()
    garden.put(Namespace("lora", ""), [1, 2, 3, 4, 5, 6])
    batch = garden.events.take()
    assert batch is not None
    (event,) = batch.events
    assert (event.kind, event.adapter, event.parent) == ("stored", "lora", first_hash(LAYOUT, "lora"))
    assert event.hashes == list(chain(event.parent, [(1, 2), (3, 4), (5, 6)]))
    assert garden.events.take() is None


def test_nothing_is_recorded_for_nobody() -> None:
    garden = Garden()
    garden.put(Namespace("", ""), [1, 2, 3, 4])
    assert garden.events.take() is None
    assert not garden.events.watched
    assert garden.events.watch().seq == 0
    garden.events.unwatch()
    garden.put(Namespace("", ""), [5, 6])
    assert garden.tree.watcher is None
    assert garden.events.take() is None


def test_a_reset_clears_and_what_still_runs_is_not_found_again() -> None:
    garden = Garden()
    garden.put(Namespace("", ""), [1, 2, 3, 4])
    mirror = Mirror(garden.events.watch())
    garden.tree.reset()
    garden.tree.insert(garden.locked[0], (5, 6), garden.pool.allocate())
    mirror.follow(garden.events.take())
    assert mirror.blocks == {}
    garden.put(Namespace("", ""), [1, 2])
    garden.tree.unlock(garden.locked[0])
    mirror.follow(garden.events.take())
    assert mirror.blocks == garden.truth() != {}


def test_two_processes_have_two_epochs() -> None:
    assert Garden().events.watch().epoch != Garden().events.watch().epoch
