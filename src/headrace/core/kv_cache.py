"""Block tables: how a running sequence gets its blocks, shares them and gives them back.

Steps execute on the device in the order in which they are launched. Hence a block may be freed and handed to a later step
while an earlier one that uses it is still under way, and a block may be shared as soon as the step that fills it has been
planned.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.core.block_pool import BlockPool, blocks_for
from headrace.core.radix import Node, RadixTree
from headrace.core.sequence import Sequence

__all__ = ["Attached", "KVCache"]


class Attached(NamedTuple):
    """What a sequence starts with."""

    cached: int
    """Tokens that need not be computed."""
    copy: tuple[int, int] | None
    """(source, destination): the block whose first tokens matched, and the private block that it must be copied to."""


class KVCache:
    """The pool, the tree, and one row of block ids a slot."""

    def __init__(self, num_blocks: int, block_size: int, num_slots: int, max_model_len: int, caching: bool) -> None:
        self.block_size = block_size
        self.caching = caching
        self.pool = BlockPool(num_blocks, block_size)
        self.tree = RadixTree(self.pool)
        width = min(blocks_for(max_model_len, block_size), num_blocks - 1)
        self.table: npt.NDArray[np.int32] = np.zeros((num_slots, width), np.int32)

    @property
    def available(self) -> int:
        """Blocks that can be had without taking any from a sequence."""
        return len(self.pool) + self.tree.evictable

    def estimate(self, seq: Sequence) -> int:
        """Blocks of its known tokens that are in the cache now."""
        root = self.tree.find(seq.namespace) if self.caching else None
        if root is None:
            return 0
        return self.tree.walk(root, seq.block_keys(self.block_size), 0, seq.reusable // self.block_size).depth

    def attach(self, seq: Sequence, slot: int, step: int, reserve: int) -> Attached | None:
        """Give a waiting sequence a slot and blocks for all its known tokens, as many from the cache as match.

        None, and no change, unless `reserve` blocks would remain available. A block is copied only when a step before
        `step` has filled it, since copies run first; whole blocks are shared even when `step` itself fills them.
        """
        size, tree = self.block_size, self.tree
        node = tree.root(seq.namespace)
        depth = 0
        near: list[tuple[int, int]] = []
        if self.caching:
            limit = seq.reusable
            match = tree.walk(node, seq.block_keys(size), 0, limit // size)
            depth = match.depth
            near = tree.beside(match, tuple(seq.tokens[depth * size : min(limit, (depth + 1) * size)]))
            node = tree.cut(match)
        tree.lock(node)
        seq.blocks = blocks_for(len(seq.tokens), size)
        if seq.blocks - depth + reserve > self.available:
            tree.unlock(node)
            return None
        seq.slot, seq.node, seq.shared = slot, node, depth
        path: list[int] = []
        while node.parent is not None:
            path[:0] = node.blocks
            node = node.parent
        near = [(n, block) for n, block in near if self.pool.filled_by[block] < step]
        mine = [self._take() for _ in range(seq.blocks - depth)]
        self.table[slot, : seq.blocks] = path + mine
        if not near:
            seq.filled = depth * size
            return Attached(depth * size, None)
        count, source = near[0]
        seq.filled = depth * size + count
        return Attached(seq.filled, (source, mine[0]) if source != mine[0] else None)

    def adopt(self, seq: Sequence, computed: int) -> int:
        """Use what others have put in the tree since this sequence was attached, in place of its own blocks.

        Returns how many tokens need not be computed: `computed` or more.
        """
        size, tree, node = self.block_size, self.tree, seq.node
        if not self.caching or node is None:
            return computed
        match = tree.walk(node, seq.keys, seq.shared, seq.reusable // size)
        if match.depth * size <= computed:
            return computed
        self._enter(seq, tree.cut(match), match.depth)
        return match.depth * size

    def grow(self, seq: Sequence) -> bool:
        """One more block. False: there is none to be had."""
        if not self.available:
            return False
        self.table[seq.slot, seq.blocks] = self._take()
        seq.blocks += 1
        return True

    def publish(self, seq: Sequence, tokens: int, step: int) -> None:
        """Put the full blocks among the first `tokens` in the tree, which `step` fills. Stops where another's are there."""
        if not self.caching or seq.node is None:
            return
        keys = seq.block_keys(self.block_size)
        while seq.shared < tokens // self.block_size and keys[seq.shared] not in seq.node.children:
            self._append(seq, step)

    def settle(self, seq: Sequence, step: int) -> None:
        """Put every full block that committed steps have stored in the tree; `step` is the last of them.

        Where the tree has the same tokens already, the row is rewritten to the tree's block and the duplicate freed.
        """
        if not self.caching or seq.node is None:
            return
        keys = seq.block_keys(self.block_size)
        full = seq.filled // self.block_size
        while seq.shared < full:
            match = self.tree.walk(seq.node, keys, seq.shared, full)
            if match.depth > seq.shared:
                self._enter(seq, self.tree.cut(match), match.depth)
            else:
                self._append(seq, step)

    def release(self, seq: Sequence, committed: int, launched: int, keep: bool = True) -> None:
        """Take everything from a sequence. `keep` leaves in the tree what committed steps have stored."""
        assert seq.node is not None
        if keep:
            self.settle(seq, committed)
        row = self.table[seq.slot]
        mine: list[int] = row[seq.shared : seq.blocks].tolist()
        tail = tuple(seq.tokens[seq.shared * self.block_size : seq.filled])
        if keep and self.caching and tail:
            self.pool.filled_by[mine[0]] = launched  # its start may be a copy that is still under way
            if self.tree.append_partial(seq.node, tail, mine[0]):
                del mine[0]
        self.pool.give(mine)
        self.tree.unlock(seq.node)
        row[: seq.blocks] = 0
        seq.slot, seq.node, seq.shared, seq.blocks, seq.filled = -1, None, 0, 0, 0

    def _take(self) -> int:
        if not self.pool.free:
            evicted = self.tree.evict()
            assert evicted, "somebody made sure that there is a block"
        return self.pool.take()

    def _append(self, seq: Sequence, step: int) -> None:
        assert seq.node is not None
        block = int(self.table[seq.slot, seq.shared])
        self.pool.filled_by[block] = step
        seq.node = self.tree.append(seq.node, seq.keys[seq.shared], block)
        seq.shared += 1

    def _enter(self, seq: Sequence, node: Node, depth: int) -> None:
        """Move down the tree to `node`, at `depth` blocks, dropping the sequence's own blocks on the way."""
        self.tree.lock(node, above=seq.node)
        path: list[int] = []
        at: Node | None = node
        while at is not None and at is not seq.node:
            path[:0] = at.blocks
            at = at.parent
        row = self.table[seq.slot]
        self.pool.give(row[seq.shared : depth].tolist())
        row[seq.shared : depth] = path
        seq.node, seq.shared = node, depth
