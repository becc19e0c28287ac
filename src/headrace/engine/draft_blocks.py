"""Blocks of a drafter's own cache: those of each sequence, and prefixes that sequences share.

An entry of a draft model depends on its token and those before it alone. So full blocks of committed tokens are shared
by sequences of one adapter and salt, as in the target's cache. Entries that are there may be computed again, with the
same values.
"""

from __future__ import annotations

from headrace.core.block_pool import BlockPool, blocks_for
from headrace.core.radix import Namespace, RadixTree
from headrace.engine.head_plans import Drafted

__all__ = ["DraftBlocks"]


class DraftBlocks:
    """Allocates the blocks of a drafter. A device executes its passes in the order of their launches, so blocks may be
    released while a pass that uses them is in flight."""

    def __init__(self, num_blocks: int, block_size: int, sharing: bool) -> None:
        """`sharing`: sequences share prefixes."""
        self.pool = BlockPool(num_blocks, block_size)
        self._tree = RadixTree(self.pool)
        self._size, self._sharing = block_size, sharing

    @property
    def available(self) -> int:
        """Blocks that can be allocated."""
        return len(self.pool) + self._tree.evictable

    def share(self, seq: Drafted) -> None:
        """Take what other sequences have computed of a sequence's tokens, if it has no blocks of its own yet. At least
        one entry remains to be computed."""
        if not self._sharing or len(seq.blocks) > seq.shared:
            return
        tree, full = self._tree, max(0, seq.entries - 1) // self._size
        node = seq.node or tree.root(Namespace(seq.request.adapter, seq.request.salt))
        if seq.node is None:
            tree.lock(node)
        seq.node = node
        match = tree.match_prefix(node, seq.keys(self._size), seq.shared, full)
        if match.depth > seq.shared:
            seq.blocks, seq.shared = tree.path(match), match.depth
            seq.node = tree.split(match)
            tree.lock(seq.node, above=node)
            seq.caught_up(match.depth * self._size)

    def grow(self, seq: Drafted, places: int) -> bool:
        """Give a sequence blocks for so many entries. False: there are not enough."""
        needed = blocks_for(places, self._size) - len(seq.blocks)
        if needed > self.available:
            return False
        for _ in range(needed):
            if not self.pool.free:
                self._tree.evict()
            seq.blocks.append(self.pool.allocate())
        return True

    def publish(self, seq: Drafted) -> None:
        """Let others share the full blocks that are computed, up to the first that another sequence has published."""
        if seq.node is None:
            return
        keys, full = seq.keys(self._size), min(seq.computed // self._size, len(seq.blocks))
        while seq.shared < full and keys[seq.shared] not in seq.node.children:
            seq.node = self._tree.insert(seq.node, keys[seq.shared], seq.blocks[seq.shared])
            seq.shared += 1

    def release(self, seq: Drafted, keep: bool = True) -> None:
        """Release all blocks of a sequence. `keep`: full ones stay for others until they are needed."""
        if keep:
            self.publish(seq)
        self.pool.release(seq.blocks[seq.shared :])
        if seq.node is not None:
            self._tree.unlock(seq.node)
        seq.blocks, seq.node, seq.shared = [], None, 0
