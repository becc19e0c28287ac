"""Block tables: allocates, shares and releases the blocks of running sequences.

The device executes steps in the order of their launches. Therefore a block may be released and allocated to a later
step while an earlier step that uses it is still in flight, and a block may be shared as soon as the step that fills it
is planned.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.core.block_names import BlockNames
from headrace.core.block_pool import BlockPool, blocks_for
from headrace.core.prompt_scores import (
    NO_SCORES,
    StoredScores,
    expect_scores,
    find_scores,
    keep_scores,
    scores_due,
    take_scores,
)
from headrace.core.radix import PrefixMatch, RadixNode, RadixTree
from headrace.core.sequence import Sequence

__all__ = ["CachedPrefix", "KVCache"]

_LOOKS = 16
"""Cached blocks that are looked at for one that goes on with a sequence."""


class CachedPrefix(NamedTuple):
    """The part of a sequence that was found in the cache."""

    cached: int
    """Tokens that need not be computed."""
    copy: tuple[int, int] | None
    """(source, destination): the block whose first tokens matched, and the private block that it must be copied to."""


class _Overlap(NamedTuple):
    """What two sequences have in common, of which the second takes the place of the first."""

    common: int
    """Tokens with which both begin."""
    computed: int
    """Those that need not be computed."""
    scores: StoredScores


class KVCache:
    """The block pool, the radix tree, and one block table per slot."""

    def __init__(self, num_blocks: int, block_size: int, num_slots: int, max_model_len: int, caching: bool) -> None:
        self.block_size = block_size
        self.caching = caching
        self.pool = BlockPool(num_blocks, block_size)
        self.tree = RadixTree(self.pool)
        width = min(blocks_for(max_model_len, block_size), num_blocks - 1)
        self.table: npt.NDArray[np.int32] = np.zeros((num_slots, width), np.int32)
        self.names: BlockNames | None = None
        """Set if blocks are kept beside the device."""

    @property
    def available(self) -> int:
        """Blocks that can be allocated without preempting a sequence."""
        return len(self.pool) + self.tree.evictable

    def estimate(self, seq: Sequence) -> int:
        """The number of blocks of its known tokens that are in the cache now."""
        root = self.tree.find(seq.namespace) if self.caching else None
        if root is None:
            return 0
        limit = self._limit(seq, find_scores(seq, self.tree))
        return self.tree.match_prefix(root, seq.block_keys(self.block_size), 0, limit // self.block_size).depth

    def attach(self, seq: Sequence, slot: int, step: int, reserve: int) -> CachedPrefix | None:
        """Allocate blocks for all known tokens of a waiting sequence and bind it to a slot; blocks that match are
        shared.

        Returns None, without any change, unless `reserve` blocks would remain available. A partly matching block is
        copied only if a step before `step` has filled it, because copies run first. Full blocks are shared even if
        `step` itself fills them.
        """
        size, tree = self.block_size, self.tree
        node = tree.root(seq.namespace)
        depth = 0
        near: list[tuple[int, int]] = []
        scores = NO_SCORES
        if self.caching:
            scores = find_scores(seq, tree)
            limit = self._limit(seq, scores)
            match = tree.match_prefix(node, seq.block_keys(size), 0, limit // size)
            depth = match.depth
            near = tree.partial_matches(match, tuple(seq.tokens[depth * size : min(limit, (depth + 1) * size)]))
            node = tree.split(match)
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
        if self.names is not None:
            self.names.shared(seq, path)
        near = [(n, block) for n, block in near if self.pool.filled_by[block] < step]
        seq.filled = depth * size + (near[0][0] if near else 0)
        take_scores(seq, scores, tree, seq.filled)  # Allocating may evict a block that is not locked.
        mine = [self.allocate() for _ in range(seq.blocks - depth)]
        self.table[slot, : seq.blocks] = path + mine
        source = near[0][1] if near else mine[0]
        return CachedPrefix(seq.filled, (source, mine[0]) if source != mine[0] else None)

    def take_over(self, before: Sequence, seq: Sequence, launched: int = 0) -> int | None:
        """Give the slot and the blocks of one sequence to another that begins with the same tokens, and allocate blocks
        for its further tokens. `launched`: tokens that launched steps compute, if they are more than those that
        committed ones have. Returns how many tokens need not be computed; None, without any change, if its first new
        token would be written to a shared block, or if blocks are missing."""
        found = self._overlap(before, seq, launched)
        if found is None:
            return None
        common, computed, scores = found
        size, need = self.block_size, blocks_for(len(seq.tokens), self.block_size)
        row = self.table[before.slot]
        if need < before.blocks:
            self.pool.release(row[need : before.blocks].tolist())
            row[need : before.blocks] = 0
        seq.slot, seq.node, seq.shared, seq.filled = before.slot, before.node, before.shared, computed
        seq.blocks = min(need, before.blocks)
        seq.keys = before.keys[: common // size]
        take_scores(seq, scores, self.tree, computed)
        before.slot, before.node, before.shared, before.blocks, before.filled = -1, None, 0, 0, 0
        while seq.blocks < need:
            self.grow(seq)
        return computed

    def may_take_over(self, before: Sequence, seq: Sequence) -> bool:
        """Whether `take_over` would do it now."""
        return self._overlap(before, seq, 0) is not None

    def may_continue(self, seq: Sequence, text: tuple[int, ...]) -> bool:
        """Whether a cached block may hold what follows a sequence: one token that is not known yet, then this text."""
        if not self.caching or seq.node is None:
            return False
        size, keys = self.block_size, seq.block_keys(self.block_size)
        tail = tuple(seq.tokens[len(keys) * size :])
        rest = text[: size - len(tail) - 1]
        match = self.tree.match_prefix(seq.node, keys, seq.shared, len(keys))
        if match.depth < len(keys) or not rest or len(tail) + 1 + len(rest) < size:
            return False
        node, at = match.node, match.offset
        found = node.keys[at : at + 1] or node.order[bisect_left(node.order, tail) :][:_LOOKS]
        return any(key[: len(tail)] == tail and key[len(tail) + 1 :] == rest for key in found)

    def awaited(self, seq: Sequence) -> int:
        """The step that brings scores of the prompt which a waiting sequence had better wait for; 0: none."""
        return scores_due(seq, self.tree) if self.caching and seq.wants_scores else 0

    def expect(self, seq: Sequence, step: int) -> None:
        """`step`, which is being planned, computes a chunk of a sequence, whose blocks are published."""
        if self.caching:
            expect_scores(seq, self.tree, step)

    def reuse_cached(self, seq: Sequence, computed: int) -> int:
        """Replace own blocks of a sequence by blocks that others have inserted in the tree since it was attached.

        Returns how many tokens need not be computed: `computed` or more.
        """
        size, tree, node = self.block_size, self.tree, seq.node
        if not self.caching or node is None:
            return computed
        scores = find_scores(seq, tree)
        limit = min(self._limit(seq, scores), seq.certain)
        match = tree.match_prefix(node, seq.block_keys(size), seq.shared, limit // size)
        if match.depth * size <= computed:
            return computed
        take_scores(seq, scores, tree, match.depth * size)
        self._move_to(seq, tree.split(match), match.depth)
        return match.depth * size

    def grow(self, seq: Sequence) -> bool:
        """Allocate one more block. False: none is available."""
        if not self.available:
            return False
        self.table[seq.slot, seq.blocks] = self.allocate()
        seq.blocks += 1
        return True

    def publish(self, seq: Sequence, tokens: int, step: int) -> None:
        """Insert the full blocks of the first `tokens` in the tree, which `step` fills. Stops at the first block that
        another sequence has inserted."""
        if not self.caching or seq.node is None:
            return
        keys = seq.block_keys(self.block_size)
        full = min(tokens, seq.certain) // self.block_size
        while seq.shared < full and keys[seq.shared] not in seq.node.children:
            self._insert(seq, step)

    def commit_blocks(self, seq: Sequence, step: int) -> None:
        """Insert every full block that committed steps have stored in the tree; `step` is the last of them.

        If the tree already has the same tokens, the block table uses the tree's block and the duplicate is released.
        The scores of a prompt go with its blocks.
        """
        if not self.caching or seq.node is None:
            return
        keys = seq.block_keys(self.block_size)
        full = min(seq.filled, seq.certain) // self.block_size
        while seq.shared < full:
            match = self.tree.match_prefix(seq.node, keys, seq.shared, full)
            if match.depth > seq.shared:
                self._move_to(seq, self.tree.split(match), match.depth)
            else:
                self._insert(seq, step)
        if seq.prompt_logprobs is not None:
            row, size = self.table[seq.slot], self.block_size
            blocks = {at: int(row[at]) for at in range(seq.stored // size, seq.shared)}
            keep_scores(seq, self.tree, blocks, min(seq.shared * size, seq.filled + 1))

    def release(self, seq: Sequence, committed: int, launched: int, keep: bool = True) -> None:
        """Release all blocks of a sequence. `keep`: blocks that committed steps have stored stay in the tree."""
        assert seq.node is not None
        if keep:
            self.commit_blocks(seq, committed)
        row = self.table[seq.slot]
        mine: list[int] = row[seq.shared : seq.blocks].tolist()
        tail = tuple(seq.tokens[seq.shared * self.block_size : seq.filled])
        if keep and self.caching and tail:
            self.pool.filled_by[mine[0]] = launched  # its start may be a copy that is still in flight
            if self.tree.insert_partial(seq.node, tail, mine[0]):
                keep_scores(seq, self.tree, {seq.shared: mine[0]}, seq.filled)
                del mine[0]
            elif seq.prompt_logprobs is not None:
                near = self.tree.partial_matches(PrefixMatch(seq.node, len(seq.node.keys), seq.shared), tail)
                for common, block in near[:1]:
                    keep_scores(seq, self.tree, {seq.shared: block}, seq.shared * self.block_size + common)
        self.pool.release(mine)
        self.tree.unlock(seq.node)
        row[: seq.blocks] = 0
        seq.slot, seq.node, seq.shared, seq.blocks, seq.filled, seq.stored, seq.expected = -1, None, 0, 0, 0, 0, 0

    def allocate(self) -> int:
        """Take a free block; if there is none, one that only the tree uses. One must be available."""
        evicts = not self.pool.free
        if evicts:
            evicted = self.tree.evict()
            assert evicted, "the caller has checked that a block is available"
        block = self.pool.allocate()
        if self.names is not None:
            self.names.allocated(block, evicts)
        return block

    def _overlap(self, before: Sequence, seq: Sequence, launched: int) -> _Overlap | None:
        """What `take_over` gives a sequence of one before it; None if it cannot."""
        size, common = self.block_size, _common_length(before.tokens, seq.tokens)
        scores = find_scores(seq, self.tree) if self.caching and not launched else NO_SCORES
        computed = min(max(before.filled, launched), common, self._limit(seq, scores))
        if before.namespace != seq.namespace or before.shared * size > computed:
            return None
        if blocks_for(len(seq.tokens), size) - before.blocks > self.available:
            return None
        return _Overlap(common, computed, scores)

    def _limit(self, seq: Sequence, scores: StoredScores) -> int:
        """The number of tokens that may come from the cache, with the scores that it has: the row before the first
        token without one is computed."""
        return max(seq.reusable, scores.end - 1)

    def _insert(self, seq: Sequence, step: int) -> None:
        assert seq.node is not None
        block = int(self.table[seq.slot, seq.shared])
        self.pool.filled_by[block] = step
        if self.names is not None:
            self.names.of_block[block] = self.names.chain(seq, seq.shared + 1)[seq.shared]
        seq.node = self.tree.insert(seq.node, seq.keys[seq.shared], block)
        seq.shared += 1

    def _move_to(self, seq: Sequence, node: RadixNode, depth: int) -> None:
        """Move a sequence down the tree to `node`, at `depth` blocks, and release its own blocks that the path
        replaces."""
        self.tree.lock(node, above=seq.node)
        path: list[int] = []
        at: RadixNode | None = node
        while at is not None and at is not seq.node:
            path[:0] = at.blocks
            at = at.parent
        row = self.table[seq.slot]
        self.pool.release(row[seq.shared : depth].tolist())
        row[seq.shared : depth] = path
        seq.node, seq.shared = node, depth


def _common_length(one: list[int], other: list[int]) -> int:
    if other[: len(one)] == one:
        return len(one)
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
