"""Blocks of prompts that other engines fetch, from the tree to a source."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.block_names import BlockNames
from headrace.core.radix import PrefixMatch, RadixNode, RadixTree
from headrace.core.sequence import Sequence

__all__ = ["GivenBlocks"]


class GivenBlocks:
    """The full blocks of prompts whose requests say `gives_blocks`, each once, as soon as a launched step fills it.

    They are read by the step after that. A sequence may have ended by then: its blocks are in the tree, and those that
    were evicted are not given; whoever fetches them finds them missing.
    """

    def __init__(self, tree: RadixTree, names: BlockNames, block_size: int, gives: Callable[[bytes], bool]) -> None:
        """`gives` is told of a block; it returns whether it needs the bytes."""
        self._tree, self._names, self._block_size, self._gives = tree, names, block_size, gives
        self._given: dict[str, tuple[Sequence, int]] = {}
        """By request: how many of its blocks have been given."""
        self._ended: set[str] = set()

    def add(self, seq: Sequence) -> None:
        """A sequence waits or runs."""
        if seq.request.gives_blocks:
            self._given.setdefault(seq.id, (seq, 0))

    def end(self, seq: Sequence) -> None:
        """A sequence has ended; what is left of its blocks is given with the next step."""
        if seq.id in self._given:
            self._ended.add(seq.id)

    def due(self) -> bool:
        """True if there is something left to give although nothing else may have to be computed."""
        return bool(self._ended)

    def lost(self) -> None:
        """Blocks that were read may be lost: all are given again."""
        self._given = {name: (seq, 0) for name, (seq, _) in self._given.items()}

    def take(self) -> list[tuple[int, bytes]]:
        """(block, its name) of those that the next step must read."""
        found: list[tuple[int, bytes]] = []
        for name, (seq, given) in list(self._given.items()):
            count = given + self._new(seq, given, found)
            if name in self._ended or count == seq.prompt_len // self._block_size:
                del self._given[name]
                self._ended.discard(name)
            else:
                self._given[name] = seq, count
        return found

    def _new(self, seq: Sequence, given: int, found: list[tuple[int, bytes]]) -> int:
        """Add the blocks of a sequence from number `given` on; returns how many it passed."""
        root = self._tree.find(seq.namespace)
        count = seq.prompt_len // self._block_size
        if root is None or given == count:
            return 0
        match = self._tree.match_prefix(root, seq.block_keys(self._block_size), 0, count)
        path = _path(match)
        for at in range(given, match.depth):
            block, name = path[at], self._names.chain(seq, at + 1)[at]
            if not self._names.holds(block, name):
                return at - given
            if self._gives(name):
                found.append((block, name))
        return match.depth - given


def _path(match: PrefixMatch) -> list[int]:
    """The blocks that match, from the root."""
    path = match.node.blocks[: match.offset]
    at: RadixNode | None = match.node.parent
    while at is not None:
        path[:0] = at.blocks
        at = at.parent
    return path
