"""Logprobs of prompts' tokens, beside the blocks of the radix tree that hold these tokens.

The logprob of a token depends on the tokens before it and on itself. So it belongs to the block that holds it, whatever
follows, and is as true as that block: wherever the tree finds the tokens, their scores are what a step would compute.
(The logits are those of the row before the token, which may be the last row of the block before.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import cache
from struct import Struct

from headrace.types import TokenLogprobs

__all__ = ["MOST_BYTES", "BlockScores"]

MOST_BYTES = 64 << 20
"""Most memory of all scores. Those of the blocks that were used longest ago are dropped first."""
_PER_TOKEN, _PER_BLOCK = 48, 240
"""Bytes that Python needs besides the entries."""
_FIRST, _PAIR = 8, 8
"""Bytes of a logprob with its rank, and of an alternative."""


class _Entries:
    """The scores of one block. An entry is logprob and rank, then the ids and the logprobs of the most likely tokens,
    each in 32 bits, as the device gives them; empty: not known."""

    __slots__ = ("least", "packed")

    def __init__(self, size: int) -> None:
        self.packed = [b""] * size
        self.least = 0
        """Length of the shortest entry; -1: not known."""


class BlockScores:
    """Scores by block and offset, in bounded memory."""

    def __init__(self, block_size: int, most_bytes: int = MOST_BYTES) -> None:
        self._size, self._most = block_size, most_bytes
        self._blocks: OrderedDict[int, _Entries] = OrderedDict()
        """The block that was used longest ago is the first."""
        self._due: dict[int, tuple[int, int]] = {}
        """Block → the step that brings all of its scores, and their alternatives."""
        self.used = 0
        """Bytes."""

    def __bool__(self) -> bool:
        return bool(self._blocks or self._due)

    @property
    def blocks(self) -> list[int]:
        """The blocks with a score, or with one that is due."""
        return [*{**self._blocks, **self._due}]

    def reach(self, block: int, start: int, stop: int, count: int) -> int:
        """The first offset from `start` on whose score is not stored with `count` alternatives; `stop` if all are."""
        entries = self._blocks.get(block)
        if entries is None:
            return start
        least = _FIRST + count * _PAIR
        if entries.least < 0:
            entries.least = min(map(len, entries.packed))
        if entries.least >= least:
            return stop
        return next((at for at in range(start, stop) if len(entries.packed[at]) < least), stop)

    def take(self, block: int, offset: int, token: int, count: int) -> TokenLogprobs:
        """A score that `reach` has found, with `count` alternatives."""
        self._blocks.move_to_end(block)
        entry = self._blocks[block].packed[offset]
        stored = (len(entry) - _FIRST) // _PAIR
        logprob, rank, *rest = _form(stored).unpack(entry)
        return TokenLogprobs(token, logprob, rank, tuple(zip(rest[:count], rest[stored : stored + count], strict=True)))

    def keep(self, block: int, offset: int, score: TokenLogprobs) -> None:
        """Store the score of a token of a block in the tree, unless it is there with as many alternatives."""
        entries = self._blocks.get(block)
        if entries is None:
            entries = self._blocks[block] = _Entries(self._size)
            self.used += _PER_BLOCK + _PER_TOKEN * self._size
        count, before = len(score.top), len(entries.packed[offset])
        if before >= _FIRST + count * _PAIR:
            return
        ids, values = zip(*score.top, strict=True) if count else ((), ())
        entry = entries.packed[offset] = _form(count).pack(score.logprob, score.rank, *ids, *values)
        entries.least = -1
        self.used += len(entry) - before
        self._blocks.move_to_end(block)
        while self.used > self._most:
            self.drop([next(iter(self._blocks))])

    def expect(self, block: int, step: int, count: int) -> None:
        """`step`, which is about to be launched, brings the last scores of a block."""
        self._due[block] = step, count

    def due(self, block: int, count: int) -> int:
        """The step whose commit brings all scores of a block with `count` alternatives, which may be over; 0: none."""
        step, alternatives = self._due.get(block, (0, 0))
        return step if alternatives >= count else 0

    def move(self, block: int, other: int) -> None:
        """Another block begins with the tokens of `block`, which is about to leave the tree."""
        entries = self._blocks.pop(block, None)
        if entries is not None:
            self._blocks[other] = entries

    def drop(self, blocks: Iterable[int]) -> None:
        """These blocks have left the tree."""
        for block in blocks:
            self._due.pop(block, None)
            entries = self._blocks.pop(block, None)
            if entries is not None:
                self.used -= _PER_BLOCK + _PER_TOKEN * self._size + sum(map(len, entries.packed))


@cache
def _form(count: int) -> Struct:
    return Struct(f"<fi{count}i{count}f")
