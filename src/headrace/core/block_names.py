"""The names of blocks in the tree, and the blocks that leave the cache in the next step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from headrace.core.block_pool import BlockPool
from headrace.core.sequence import Sequence

__all__ = ["BlockNames"]


class BlockNames:
    """Names by content: a chain of hashes over adapter, salt and tokens. `first` gives the hash before the first block
    of (adapter, salt), `following` that of a block from its parent's hash and its tokens."""

    def __init__(
        self, pool: BlockPool, first: Callable[[str, str], bytes], following: Callable[[bytes, tuple[int, ...]], bytes]
    ) -> None:
        self._pool, self._first, self._following = pool, first, following
        self.of_block: list[bytes | None] = [None] * (pool.total + 1)
        """Names of blocks in the tree. A block that was released may still have its former name."""
        self.evicted: list[tuple[int, bytes]] = []
        """Blocks, with their names, that were evicted since the last plan. Their content is intact until its step."""
        self.reused: deque[tuple[int, bytes]] = deque(maxlen=8192)
        """Blocks, with their names, that another sequence has found in the tree."""
        self.launched = 0
        """The last step that was planned."""

    def chain(self, seq: Sequence, count: int) -> list[bytes]:
        """The names of at least the first `count` blocks of a sequence, which must be full."""
        names, keys = seq.names, seq.block_keys(self._pool.block_size)
        while len(names) < count:
            parent = names[-1] if names else self._first(seq.namespace.adapter, seq.namespace.salt)
            names.append(self._following(parent, keys[len(names)]))
        return names

    def shared(self, seq: Sequence, blocks: Iterable[int]) -> None:
        """A sequence has found its first blocks in the tree."""
        found = list(blocks)
        self.reused.extend(zip(found, self.chain(seq, len(found)), strict=False))

    def holds(self, block: int, name: bytes) -> bool:
        """True if a launched step has filled a block with the content of this name, and it has not been allocated
        since."""
        return self.of_block[block] == name and self._pool.filled_by[block] <= self.launched

    def next_reused(self) -> tuple[int, bytes] | None:
        """Take the next block that another sequence has found, if it still has its content; None if it has not."""
        block, name = self.reused.popleft()
        if self.holds(block, name):
            return block, name
        if self.of_block[block] == name:
            # It was shared within the step that fills it: it can be read in the next one.
            self.reused.append((block, name))
        return None

    def reset(self) -> None:
        """The content of some blocks is lost."""
        self.evicted.clear()
        self.reused.clear()

    def allocated(self, block: int, evicted: bool) -> None:
        """A block has been allocated; `evicted`: the tree has just given it up."""
        name, self.of_block[block] = self.of_block[block], None
        if evicted and name is not None and self._pool.filled_by[block] <= self.launched:
            self.evicted.append((block, name))
