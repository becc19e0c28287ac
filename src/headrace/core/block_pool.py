"""The pool of free KV blocks."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["BlockPool", "blocks_for"]


def blocks_for(tokens: int, block_size: int) -> int:
    """The number of blocks for so many tokens."""
    return -(-tokens // block_size)


class BlockPool:
    """A stack of free block ids. Block 0 is the device's padding and is never allocated.

    Every other block has one owner at any time: this pool, one node of the radix tree, or one running sequence. Blocks
    are only shared through the tree, whose nodes have lock counts, so blocks need no reference counts.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.total = num_blocks - 1
        self.free = list(range(num_blocks - 1, 0, -1))
        self.filled_by = [0] * num_blocks
        """Block → the step that fills it, for blocks in the tree."""

    def __len__(self) -> int:
        return len(self.free)

    def allocate(self) -> int:
        """Take the block that was released last, because it is most likely in a processor cache. The pool must not be
        empty."""
        return self.free.pop()

    def release(self, blocks: Iterable[int]) -> None:
        self.free.extend(blocks)
