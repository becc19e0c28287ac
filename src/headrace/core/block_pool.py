"""The KV blocks that nobody uses."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["BlockPool", "blocks_for"]


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // block_size)


class BlockPool:
    """A stack of free block ids. Block 0 is the device's padding and is never handed out.

    Every other block has one owner at any time: this pool, one node of the radix tree, or one running sequence. Sharing goes
    through the tree alone, so blocks need no reference counts of their own; nodes have lock counts.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.total = num_blocks - 1
        self.free = list(range(num_blocks - 1, 0, -1))
        self.filled_by = [0] * num_blocks
        """The step that fills a block, for blocks in the tree."""

    def __len__(self) -> int:
        return len(self.free)

    def take(self) -> int:
        """The block freed last, which is the likeliest to be in a cache. The pool must not be empty."""
        return self.free.pop()

    def give(self, blocks: Iterable[int]) -> None:
        self.free.extend(blocks)
