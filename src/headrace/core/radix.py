"""A radix tree over token blocks: which prefixes are in the KV cache, who uses them, and what goes first.

An edge holds a run of blocks, each keyed by its own tokens. Nodes split where sequences part and merge again when one of
the branches is gone. A node is locked by each running sequence that uses it; an unlocked subtree is evicted leaf by leaf,
the least recently used first (SGLang's RadixAttention, arXiv:2312.07104, on whole blocks).

The last block of an ended sequence may be partly filled: it stands as a leaf with a short key. Such leaves, and blocks that
match only at their start, are never shared but copied.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.core.block_pool import BlockPool

__all__ = ["Key", "Match", "Namespace", "Node", "RadixTree"]

Key = tuple[int, ...]
"""The tokens of one block."""


class Namespace(NamedTuple):
    """Prefixes are shared only within one adapter and one salt."""

    adapter: str
    salt: str


class Node:
    """A run of blocks. The root of a namespace has none."""

    __slots__ = ("blocks", "children", "keys", "lock", "namespace", "order", "parent", "retired", "serial", "used")

    def __init__(self, parent: Node | None, keys: list[Key], blocks: list[int], serial: int) -> None:
        self.parent = parent
        self.keys = keys
        self.blocks = blocks
        self.children: dict[Key, Node] = {}
        self.order: list[Key] = []
        """Keys of the children, sorted: the longest common prefix with any key is at one of its two neighbours."""
        self.lock = 0
        """Running sequences that use this node, those of its subtree included."""
        self.used = 0
        self.serial = serial
        self.namespace: Namespace | None = None
        """Of a root."""
        self.retired = False
        """Of a root: it is no longer searched, and its blocks are freed as soon as they are unlocked."""


class Match(NamedTuple):
    """Where a walk ended: inside or at the end of `node`'s run."""

    node: Node
    offset: int
    """Blocks of `node` that match."""
    depth: int
    """Blocks that match in all, from the root."""


class RadixTree:
    """The tree of every namespace. Blocks it lets go of return to the pool."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.roots: dict[Namespace, Node] = {}
        self.retired: list[Node] = []
        self.size = 0
        """Blocks in the tree."""
        self.evictable = 0
        """Those of them that no sequence uses."""
        self._clock = 0
        self._serial = 0
        self._leaves: list[tuple[int, int, Node]] = []
        """Heap of (last use, serial, unlocked leaf). Entries go stale and are skipped when they come up."""

    # Looking up

    def find(self, namespace: Namespace) -> Node | None:
        return self.roots.get(namespace)

    def root(self, namespace: Namespace) -> Node:
        """The namespace's root, made if need be. It stays while it is locked or has children."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = self._node(None, [], [])
            root.namespace = namespace
        return root

    def walk(self, node: Node, keys: Sequence[Key], start: int, stop: int) -> Match:
        """Follow keys[start:stop] down from the end of `node`, which lies `start` blocks deep."""
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
                return Match(node, n, at)
        return Match(node, len(node.keys), at)

    def beside(self, match: Match, tail: Key) -> list[tuple[int, int]]:
        """Blocks after the match whose first tokens are those of `tail`: (tokens in common, block), the longest first."""
        node, offset, _ = match
        if offset < len(node.keys):
            near = [(node.keys[offset], node.blocks[offset])]
        else:
            at = bisect_left(node.order, tail)
            near = [(key, node.children[key].blocks[0]) for key in node.order[max(at - 1, 0) : at + 1]]
        found = [(_common(key, tail), block) for key, block in near]
        return sorted((pair for pair in found if pair[0]), reverse=True)

    # Locking

    def cut(self, match: Match) -> Node:
        """The node that ends where the match ends; splits a run to get it."""
        node, offset, _ = match
        return node if offset == len(node.keys) else self._split(node, offset)

    def lock(self, node: Node, above: Node | None = None) -> None:
        """Count one more user of the path from `node` up to the root, or up to `above`, which it has locked already."""
        at: Node | None = node
        while at is not above and at is not None:
            if at.lock == 0:
                self.evictable -= len(at.blocks)
            at.lock += 1
            at = at.parent

    def unlock(self, node: Node) -> None:
        """Undo `lock(node)`. What nobody uses any more becomes evictable, used just now."""
        root = node
        at: Node | None = node
        while at is not None:
            root, parent = at, at.parent
            at.lock -= 1
            if at.lock == 0:
                self.evictable += len(at.blocks)
                self._touch(at)
            self._merge(at)
            at = parent
        if root.retired:
            self._prune(root)
        self._forget(root)

    # Growing

    def append(self, node: Node, key: Key, block: int) -> Node:
        """Put a block after `node`, for a sequence that holds a lock ending there. Returns the node that it ends at now."""
        self.size += 1
        if node.parent is not None and node.lock == 1 and not node.children:
            node.keys.append(key)
            node.blocks.append(block)
            return node
        child = self._child(node, key, block)
        child.lock = 1
        self._supersede(node, key)
        return child

    def append_partial(self, node: Node, key: Key, block: int) -> bool:
        """Keep a partly filled block after `node`, unlocked. False: what is there already says as much, or more."""
        root = node
        while root.parent is not None:
            root = root.parent
        near = self.beside(Match(node, len(node.keys), 0), key)
        if root.retired or (near and near[0][0] == len(key)):
            return False
        self.size += 1
        self.evictable += 1
        self._touch(self._child(node, key, block))
        return True

    # Shrinking

    def evict(self) -> bool:
        """Return one block to the pool: the last one of the leaf whose use lies furthest back. False: all are in use."""
        while self._leaves:
            used, _, node = self._leaves[0]
            if node.parent is None or node.lock or node.children or node.used != used:
                heapq.heappop(self._leaves)
                continue
            self._trim(node, len(node.blocks) - 1)
            return True
        return False

    def reset(self) -> None:
        """Forget every prefix. Blocks in use stay until their sequences let go, but nothing finds them any more."""
        for root in list(self.roots.values()):
            root.retired = True
            self.retired.append(root)
        self.roots.clear()
        for root in list(self.retired):
            self._prune(root)
            self._forget(root)

    def drop(self, step: int) -> None:
        """Drop the blocks that this step or a later one was to fill, and all that follow them. None of them may be locked."""
        filled = self._pool.filled_by
        for root in [*self.roots.values(), *self.retired]:
            for node in self.nodes(root):
                bad = next((i for i, block in enumerate(node.blocks) if filled[block] >= step), None)
                if bad is None or node.parent is None:
                    continue
                if bad:
                    self._split(node, bad)
                for doomed in reversed(self.nodes(node)):
                    if doomed.parent is not None:
                        self._trim(doomed, 0)
            self._forget(root)

    def nodes(self, root: Node) -> list[Node]:
        """The subtree, parents before children."""
        found = [root]
        for node in found:
            found.extend(node.children.values())
        return found

    def __iter__(self) -> Iterator[Node]:
        for root in [*self.roots.values(), *self.retired]:
            yield from self.nodes(root)

    # Parts

    def _node(self, parent: Node | None, keys: list[Key], blocks: list[int]) -> Node:
        self._serial += 1
        return Node(parent, keys, blocks, self._serial)

    def _child(self, node: Node, key: Key, block: int) -> Node:
        child = node.children[key] = self._node(node, [key], [block])
        insort(node.order, key)
        return child

    def _supersede(self, node: Node, key: Key) -> None:
        """A full block makes a partly filled one with the same start useless."""
        at = bisect_left(node.order, key) - 1
        if at >= 0 and node.order[at] == key[: len(node.order[at])]:
            self._trim(node.children[node.order[at]], 0)

    def _split(self, node: Node, offset: int) -> Node:
        """The upper part is the new node, so that sequences which end at `node` still do."""
        assert node.parent is not None
        upper = self._node(node.parent, node.keys[:offset], node.blocks[:offset])
        upper.lock, upper.used = node.lock, node.used
        node.parent.children[node.keys[0]] = upper
        node.keys, node.blocks, node.parent = node.keys[offset:], node.blocks[offset:], upper
        upper.children[node.keys[0]] = node
        upper.order.append(node.keys[0])
        return upper

    def _merge(self, node: Node) -> None:
        """Join a node with its only child where no sequence ends between them. The child survives, as in `_split`."""
        if node.parent is None or len(node.children) != 1:
            return
        child = next(iter(node.children.values()))
        if child.lock != node.lock or len(child.keys[0]) < self._pool.block_size:
            return
        child.keys, child.blocks, child.parent = node.keys + child.keys, node.blocks + child.blocks, node.parent
        node.parent.children[node.keys[0]] = child
        node.parent = None

    def _touch(self, node: Node) -> None:
        self._clock += 1
        node.used = self._clock
        self._offer(node)

    def _offer(self, node: Node) -> None:
        """Make an unlocked leaf a candidate for eviction."""
        if node.parent is None or node.children or node.lock:
            return
        if len(self._leaves) > 4 * self._pool.total + 64:
            self._leaves = [e for e in self._leaves if e[2].parent is not None and e[2].used == e[0] and not e[2].lock]
            heapq.heapify(self._leaves)
        heapq.heappush(self._leaves, (node.used, node.serial, node))

    def _trim(self, node: Node, length: int) -> None:
        """Cut an unlocked, childless node to `length` blocks; one without blocks goes."""
        assert node.lock == 0
        assert not node.children
        assert node.parent is not None
        gone = node.blocks[length:]
        self._pool.give(gone)
        self.size -= len(gone)
        self.evictable -= len(gone)
        first = node.keys[0]
        del node.blocks[length:], node.keys[length:]
        if length:
            self._offer(node)
            return
        parent, node.parent = node.parent, None
        del parent.children[first]
        del parent.order[bisect_left(parent.order, first)]
        self._offer(parent)
        self._merge(parent)
        self._forget(parent)

    def _prune(self, root: Node) -> None:
        """Free the unlocked part of a tree."""
        for node in reversed(self.nodes(root)):
            if node.parent is not None and node.lock == 0 and not node.children:
                self._trim(node, 0)

    def _forget(self, root: Node) -> None:
        """Let go of an empty, unused root."""
        if root.parent is not None or root.children or root.lock:
            return
        if root in self.retired:
            self.retired.remove(root)
        elif root.namespace is not None and self.roots.get(root.namespace) is root:
            del self.roots[root.namespace]


def _common(a: Key, b: Key) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
