"""The invariants of the core between any two calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import pairwise

from headrace.core.kv_cache import KVCache
from headrace.core.radix import RadixNode, RadixTree
from headrace.core.sequence import Sequence
from headrace.core.slots import Slots

__all__ = ["check"]


def check(
    cache: KVCache,
    slots: Slots,
    running: list[Sequence],
    pinned: Collection[RadixNode] = (),
    reserved: Collection[int] = (),
) -> None:
    """Assert that every block has exactly one owner, that sequences with a slot and pins hold all locks, and that the
    block tables agree with the tree. `reserved`: blocks that nothing uses yet."""
    nodes = list(cache.tree)
    _check_tree(cache.tree, nodes, cache.block_size)
    _check_locks(nodes, running, pinned)
    in_tree = [block for node in nodes for block in node.blocks]
    assert set(cache.tree.scores.blocks) <= set(in_tree), "scores of a block that has left the tree"
    private: list[int] = list(reserved)
    for seq in running:
        row = cache.table[seq.slot].tolist()
        path = _path(seq)
        assert row[: seq.shared] == [block for node in path for block in node.blocks]
        assert [key for node in path for key in node.keys] == seq.keys[: seq.shared]
        assert not any(row[seq.blocks :])
        private += row[seq.shared : seq.blocks]
        assert seq.filled <= len(seq.tokens)
        assert seq.shared * cache.block_size <= slots.computed[seq.slot] <= seq.blocks * cache.block_size
    owned = sorted(cache.pool.free + in_tree + private)
    assert owned == list(range(1, cache.pool.total + 1)), "a block is lost or has two owners"
    held = len(private) + cache.tree.size - cache.tree.evictable
    assert len(cache.pool) + cache.tree.evictable + held == cache.pool.total
    taken = [seq.slot for seq in running]
    assert sorted(taken + slots.free) == list(range(len(slots.constraints)))
    assert not cache.table[slots.free].any()


def _path(seq: Sequence) -> list[RadixNode]:
    return _path_to(seq.node)


def _path_to(node: RadixNode | None) -> list[RadixNode]:
    path: list[RadixNode] = []
    while node is not None:
        path.append(node)
        node = node.parent
    return path[::-1]


def _check_tree(tree: RadixTree, nodes: list[RadixNode], block_size: int) -> None:
    candidates = {(serial, used) for used, serial, _ in tree._leaves}
    for node in nodes:
        assert len(node.keys) == len(node.blocks)
        assert (node.parent is None) == (not node.keys)
        assert sorted(node.children) == node.order
        for first, child in node.children.items():
            assert child.parent is node
            assert child.keys[0] == first
            assert child.lock <= node.lock
        for short, key in pairwise(node.order):
            assert len(short) <= block_size
            assert short != key
        if any(len(key) != block_size for key in node.keys):
            assert len(node.keys) == 1
            assert not node.children
            assert node.lock == 0
        if node.parent is not None and not node.lock and not node.children:
            assert (node.serial, node.used) in candidates, "a leaf that can never be evicted"
    assert tree.size == sum(len(node.blocks) for node in nodes)
    assert tree.evictable == sum(len(node.blocks) for node in nodes if not node.lock)


def _check_locks(nodes: list[RadixNode], running: list[Sequence], pinned: Collection[RadixNode]) -> None:
    locks = Counter(id(node) for seq in running for node in _path(seq))
    locks.update(id(node) for end in pinned for node in _path_to(end))
    for node in nodes:
        assert node.lock == locks[id(node)]
        if node.parent is None:
            assert node.lock or node.children, "an empty root was not removed"
    assert locks.keys() <= {id(node) for node in nodes}, "a sequence lost its place in the tree"
