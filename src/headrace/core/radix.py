"""A radix tree over token blocks: the prefixes in the KV cache, their users, and the order of eviction.

A node holds a run of blocks, each with its tokens as the key. A node splits where sequences diverge, and merges again
when one of the branches has been removed. Each running sequence locks the nodes that it uses. An unlocked subtree is
evicted leaf by leaf, the least recently used first (SGLang's RadixAttention, arXiv:2312.07104, on full blocks).

The last block of an ended sequence may be partly filled: it is a leaf with a short key. Such leaves, and blocks of
which only the start matches, are never shared but copied.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from headrace.core.block_pool import BlockPool
from headrace.core.block_scores import BlockScores

__all__ = ["BlockKey", "Namespace", "PrefixMatch", "RadixNode", "RadixTree", "TreeWatcher"]

BlockKey = tuple[int, ...]
"""The tokens of one block."""


class Namespace(NamedTuple):
    """The scope of sharing: prefixes are only shared within one adapter and one salt."""

    adapter: str
    salt: str


class RadixNode:
    """A run of blocks. The root of a namespace has none."""

    __slots__ = ("blocks", "children", "keys", "lock", "namespace", "order", "parent", "retired", "serial", "used")

    def __init__(self, parent: RadixNode | None, keys: list[BlockKey], blocks: list[int], serial: int) -> None:
        self.parent = parent
        self.keys = keys
        self.blocks = blocks
        self.children: dict[BlockKey, RadixNode] = {}
        self.order: list[BlockKey] = []
        """Sorted keys of the children: the child with the longest common prefix of a key is one of its two
        neighbours."""
        self.lock = 0
        """The number of running sequences that use this node or its subtree."""
        self.used = 0
        self.serial = serial
        self.namespace: Namespace | None = None
        """Only of a root."""
        self.retired = False
        """Only of a root: it is no longer searched, and its blocks are released as soon as they are unlocked."""


class PrefixMatch(NamedTuple):
    """The longest matching prefix. It ends inside or at the end of the run of `node`."""

    node: RadixNode
    offset: int
    """Blocks of `node` that match."""
    depth: int
    """All blocks that match, from the root."""


class TreeWatcher(Protocol):
    """Is told how the tree's full blocks change."""

    def stored(self, node: RadixNode, key: BlockKey, block: int) -> None:
        """A block is about to be inserted after the last block of `node`."""

    def removed(self, blocks: Iterable[int]) -> None:
        """Blocks have been evicted, the last of a prefix. Partly filled ones are among them."""

    def cleared(self) -> None:
        """No block is found any more."""


class RadixTree:
    """The trees of all namespaces. Evicted blocks return to the pool."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.watcher: TreeWatcher | None = None
        self.scores = BlockScores(pool.block_size)
        """Of blocks in the tree."""
        self.roots: dict[Namespace, RadixNode] = {}
        self.retired: list[RadixNode] = []
        self.size = 0
        """Blocks in the tree."""
        self.evictable = 0
        """Blocks in the tree that no sequence uses."""
        self._clock = 0
        self._serial = 0
        self._leaves: list[tuple[int, int, RadixNode]] = []
        """Heap of (last use, serial, unlocked leaf). Stale entries are skipped when they are popped."""

    @property
    def block_size(self) -> int:
        return self._pool.block_size

    # Search

    def find(self, namespace: Namespace) -> RadixNode | None:
        return self.roots.get(namespace)

    def root(self, namespace: Namespace) -> RadixNode:
        """The root of a namespace, created if needed. It stays while it is locked or has children."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = self._node(None, [], [])
            root.namespace = namespace
        return root

    def match_prefix(self, node: RadixNode, keys: Sequence[BlockKey], start: int, stop: int) -> PrefixMatch:
        """Match keys[start:stop] from the end of `node`, whose depth is `start` blocks."""
        at = start
        while at < stop and (child := node.children.get(keys[at])) is not None:
            run = child.keys
            length = min(len(run), stop - at)
            n = 1
            while n < length and run[n] == keys[at + n]:
                n += 1
            at += n
            node = child
            if n < len(run):
                return PrefixMatch(node, n, at)
        return PrefixMatch(node, len(node.keys), at)

    def partial_matches(self, match: PrefixMatch, tail: BlockKey) -> list[tuple[int, int]]:
        """Blocks after the match that share their first tokens with `tail`: (common tokens, block), the longest
        first."""
        node, offset, _ = match
        if offset < len(node.keys):
            near = [(node.keys[offset], node.blocks[offset])]
        else:
            at = bisect_left(node.order, tail)
            near = [(key, node.children[key].blocks[0]) for key in node.order[max(at - 1, 0) : at + 1]]
        found = [(_common(key, tail), block) for key, block in near]
        return sorted((pair for pair in found if pair[0]), reverse=True)

    def path(self, match: PrefixMatch) -> list[int]:
        """The blocks of a match, from the root."""
        runs = [match.node.blocks[: match.offset]]
        above = match.node.parent
        while above is not None:
            runs.append(above.blocks)
            above = above.parent
        return [block for run in reversed(runs) for block in run]

    # Locking

    def split(self, match: PrefixMatch) -> RadixNode:
        """The node that ends where the match ends; splits a node if needed."""
        node, offset, _ = match
        return node if offset == len(node.keys) else self._split_node(node, offset)

    def lock(self, node: RadixNode, above: RadixNode | None = None) -> None:
        """Add one user to the path from `node` up to the root, or up to `above`, which the user has already locked."""
        at: RadixNode | None = node
        while at is not above and at is not None:
            if at.lock == 0:
                self.evictable -= len(at.blocks)
            at.lock += 1
            at = at.parent

    def unlock(self, node: RadixNode) -> None:
        """Undo `lock(node)`. Nodes without users become evictable, with the current time as their last use."""
        root = node
        at: RadixNode | None = node
        while at is not None:
            root, parent = at, at.parent
            at.lock -= 1
            if at.lock == 0:
                self.evictable += len(at.blocks)
                self._mark_used(at)
            self._merge(at)
            at = parent
        if root.retired:
            self._prune(root)
        self._remove_empty_root(root)

    # Insertion

    def insert(self, node: RadixNode, key: BlockKey, block: int) -> RadixNode:
        """Insert a block after `node`, for a sequence whose lock ends there. Returns the node at which the sequence
        ends now."""
        self.size += 1
        if self.watcher is not None:
            self.watcher.stored(node, key, block)
        if node.parent is not None and node.lock == 1 and not node.children:
            node.keys.append(key)
            node.blocks.append(block)
            return node
        child = self._child(node, key, block)
        child.lock = 1
        self._remove_partial(node, key, block)
        return child

    def insert_partial(self, node: RadixNode, key: BlockKey, block: int) -> bool:
        """Insert a partly filled block after `node`, unlocked. False: another block already has these tokens."""
        root = node
        while root.parent is not None:
            root = root.parent
        near = self.partial_matches(PrefixMatch(node, len(node.keys), 0), key)
        if root.retired or (near and near[0][0] == len(key)):
            return False
        self.size += 1
        self.evictable += 1
        self._mark_used(self._child(node, key, block))
        return True

    # Eviction

    def evict(self) -> bool:
        """Return one block to the pool: the last block of the least recently used leaf. False: all blocks are in
        use."""
        while self._leaves:
            used, _, node = self._leaves[0]
            if node.parent is None or node.lock or node.children or node.used != used:
                heapq.heappop(self._leaves)
                continue
            self._truncate(node, len(node.blocks) - 1)
            return True
        return False

    def reset(self) -> None:
        """Remove all prefixes. Blocks in use stay until their sequences release them, but are not found any more."""
        for root in list(self.roots.values()):
            root.retired = True
            self.retired.append(root)
        self.roots.clear()
        if self.watcher is not None:
            self.watcher.cleared()
        for root in list(self.retired):
            self._prune(root)
            self._remove_empty_root(root)

    def drop(self, step: int) -> None:
        """Remove the blocks that this step or a later one should have filled, and all blocks after them. None may be
        locked."""
        filled = self._pool.filled_by
        for root in [*self.roots.values(), *self.retired]:
            for node in self.nodes(root):
                bad = next((i for i, block in enumerate(node.blocks) if filled[block] >= step), None)
                if bad is None or node.parent is None:
                    continue
                if bad:
                    self._split_node(node, bad)
                for below in reversed(self.nodes(node)):
                    if below.parent is not None:
                        self._truncate(below, 0)
            self._remove_empty_root(root)

    def nodes(self, root: RadixNode) -> list[RadixNode]:
        """The nodes of a subtree, parents before children."""
        found = [root]
        for node in found:
            found.extend(node.children.values())
        return found

    def __iter__(self) -> Iterator[RadixNode]:
        for root in [*self.roots.values(), *self.retired]:
            yield from self.nodes(root)

    # Parts

    def _node(self, parent: RadixNode | None, keys: list[BlockKey], blocks: list[int]) -> RadixNode:
        self._serial += 1
        return RadixNode(parent, keys, blocks, self._serial)

    def _child(self, node: RadixNode, key: BlockKey, block: int) -> RadixNode:
        child = node.children[key] = self._node(node, [key], [block])
        insort(node.order, key)
        return child

    def _remove_partial(self, node: RadixNode, key: BlockKey, block: int) -> None:
        """Remove a partly filled block that is the start of a full block."""
        at = bisect_left(node.order, key) - 1
        if at >= 0 and node.order[at] == key[: len(node.order[at])]:
            short = node.children[node.order[at]]
            self.scores.move(short.blocks[0], block)
            self._truncate(short, 0)

    def _split_node(self, node: RadixNode, offset: int) -> RadixNode:
        """Split a node. The upper part is the new node, so that sequences which end at `node` still end there."""
        assert node.parent is not None
        upper = self._node(node.parent, node.keys[:offset], node.blocks[:offset])
        upper.lock, upper.used = node.lock, node.used
        node.parent.children[node.keys[0]] = upper
        node.keys, node.blocks, node.parent = node.keys[offset:], node.blocks[offset:], upper
        upper.children[node.keys[0]] = node
        upper.order.append(node.keys[0])
        return upper

    def _merge(self, node: RadixNode) -> None:
        """Merge a node into its only child if no sequence ends between them. The child remains, as in `_split_node`."""
        if node.parent is None or len(node.children) != 1:
            return
        child = next(iter(node.children.values()))
        if child.lock != node.lock or len(child.keys[0]) < self._pool.block_size:
            return
        child.keys, child.blocks, child.parent = node.keys + child.keys, node.blocks + child.blocks, node.parent
        node.parent.children[node.keys[0]] = child
        node.parent = None

    def _mark_used(self, node: RadixNode) -> None:
        self._clock += 1
        node.used = self._clock
        self._add_candidate(node)

    def _add_candidate(self, node: RadixNode) -> None:
        """Make an unlocked leaf a candidate for eviction."""
        if node.parent is None or node.children or node.lock:
            return
        if len(self._leaves) > 4 * self._pool.total + 64:
            self._leaves = [e for e in self._leaves if e[2].parent is not None and e[2].used == e[0] and not e[2].lock]
            heapq.heapify(self._leaves)
        heapq.heappush(self._leaves, (node.used, node.serial, node))

    def _truncate(self, node: RadixNode, length: int) -> None:
        """Truncate an unlocked node without children to `length` blocks; a node without blocks is removed."""
        assert node.lock == 0
        assert not node.children
        assert node.parent is not None
        evicted = node.blocks[length:]
        self._pool.release(evicted)
        self.scores.drop(evicted)
        if self.watcher is not None:
            self.watcher.removed(evicted)
        self.size -= len(evicted)
        self.evictable -= len(evicted)
        first = node.keys[0]
        del node.blocks[length:], node.keys[length:]
        if length:
            self._add_candidate(node)
            return
        parent, node.parent = node.parent, None
        del parent.children[first]
        del parent.order[bisect_left(parent.order, first)]
        self._add_candidate(parent)
        self._merge(parent)
        self._remove_empty_root(parent)

    def _prune(self, root: RadixNode) -> None:
        """Release the unlocked part of a tree."""
        for node in reversed(self.nodes(root)):
            if node.parent is not None and node.lock == 0 and not node.children:
                self._truncate(node, 0)

    def _remove_empty_root(self, root: RadixNode) -> None:
        """Remove a root that is empty and not in use."""
        if root.parent is not None or root.children or root.lock:
            return
        if root in self.retired:
            self.retired.remove(root)
        elif root.namespace is not None and self.roots.get(root.namespace) is root:
            del self.roots[root.namespace]


def _common(a: BlockKey, b: BlockKey) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
