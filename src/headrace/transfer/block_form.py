"""The order of a block's bytes, and the exact conversion of blocks between two orders.

The bytes of a block are those of one rank behind the other. A rank's part has, for each of its layers, its keys, its
values, and their scales if there are any, each [KV heads, tokens, row]. So the tokens of one head lie together, and a
block of another number of tokens, or of another split of the heads, has the same runs of bytes in other places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["BlockForm", "Conversion", "Converter", "conversion", "form_bytes", "joins", "same_heads"]

_MOST_TOKENS = 4096
"""Of a block: no engine has so large ones, and who says more is not one of ours."""
_MOST_ALIGN = 1 << 16
_MOST_COPIES = 64
"""Ranks that have the same head, on average."""
_Place = tuple[int, int, int]
"""Layer, number of a part of it, KV head."""


class BlockForm(msgspec.Struct, frozen=True, array_like=True):
    """The order of a block's bytes, but for the number of its tokens."""

    rows: tuple[tuple[int, ...], ...]
    """Of each layer of the model: bytes of the row of one token and one head in each of its parts."""
    ranks: tuple[tuple[tuple[int, int, int], ...], ...]
    """Of each rank its layers in order, each as (layer, first KV head, number of KV heads). Ranks may have the same
    heads."""
    align: int = 1
    """Each part of a layer takes a multiple of so many bytes on each rank."""


def form_bytes(form: BlockForm, block_size: int, rank: int | None = None) -> int:
    """Bytes of a block of `block_size` tokens; of one rank's part of it, if one is named."""
    chosen = form.ranks if rank is None else form.ranks[rank : rank + 1]
    return sum(
        _padded(heads * block_size * row, form.align)
        for layers in chosen
        for layer, _, heads in layers
        for row in form.rows[layer]
    )


def joins(one: int, other: int) -> bool:
    """Whether blocks of one of two sizes are made of whole blocks of the other. False for what is no size."""
    least, most = min(one, other), max(one, other)
    return least > 0 and most <= _MOST_TOKENS and most % least == 0


def same_heads(theirs: BlockForm, ours: BlockForm) -> bool:
    """Whether two forms are of the same heads of the same layers. `theirs` comes from outside and may say anything:
    the work is bounded by its length and by what `ours` has."""
    most: dict[int, int] = {}
    for layers in ours.ranks:
        for layer, first, heads in layers:
            most[layer] = max(most.get(layer, 0), first + heads)
    found, count = set[tuple[int, int]](), 0
    for layers in theirs.ranks:
        for layer, first, heads in layers:
            if first < 0 or heads < 1 or first + heads > most.get(layer, 0):
                return False
            found.update((layer, head) for head in range(first, first + heads))
            count += heads
    whole = len(found) == sum(most.values()) and count <= _MOST_COPIES * len(found)
    return whole and theirs.rows == ours.rows and 1 <= theirs.align <= _MOST_ALIGN


class Conversion:
    """From blocks of `theirs`, a form and a number of tokens, to blocks of `ours`. One number of tokens must be a
    multiple of the other, and both forms must be of the same model: the same rows, and every head on some rank.

    Tokens are taken in groups of as many as the larger block has. The bytes move in units, the largest of which all
    runs consist: a block of ours is a choice of the units of the group's blocks of theirs, and one of zeros for what
    lies between aligned parts.
    """

    def __init__(self, theirs: tuple[BlockForm, int], ours: tuple[BlockForm, int]) -> None:
        self._sizes = theirs[1], ours[1]
        self.group = max(self._sizes)
        """Tokens."""
        self.bytes = form_bytes(*theirs), form_bytes(*ours)
        """Of a block of theirs, and of ours."""
        there, here = _places(*theirs), _places(*ours)
        step, spans = min(self._sizes), list[tuple[int, int, int, int]]()
        for (layer, part, head), starts in here.items():
            row, source = ours[0].rows[layer][part], there[layer, part, head][0]
            for token in range(0, self.group, step):
                place = token // theirs[1] * self.bytes[0] + source + token % theirs[1] * row
                spans += ((place, token // ours[1], to + token % ours[1] * row, step * row) for to in starts)
        self._unit = math.gcd(*self.bytes, *(value for place, _, to, size in spans for value in (place, to, size)))
        zeros = self.group // theirs[1] * self.bytes[0] // self._unit
        self._units = zeros + 1
        self._chosen = np.full((self.group // ours[1], self.bytes[1] // self._unit), zeros, np.int32)
        for place, block, to, size in spans:
            first, at, count = place // self._unit, to // self._unit, size // self._unit
            self._chosen[block, at : at + count] = np.arange(first, first + count, dtype=np.int32)

    def begin(self, start: int, count: int) -> Converter:
        """For `count` blocks of ours from token `start` on; theirs follow in order from the one with that token on."""
        return Converter(self, start, count)

    def memory(self) -> npt.NDArray[np.uint8]:
        """uint8 [units, bytes of a unit] for the blocks of a group."""
        return np.zeros((self._units, self._unit), np.uint8)

    def made(self, memory: npt.NDArray[np.uint8], at: int) -> memoryview:
        """Our block number `at` of a group that lies in `memory`."""
        return memoryview(memory[self._chosen[at]].reshape(-1).data)

    @property
    def sizes(self) -> tuple[int, int]:
        """Tokens of a block of theirs, and of ours."""
        return self._sizes


class Converter:
    """Makes the blocks of one fetch. One thread uses it."""

    def __init__(self, conversion: Conversion, start: int, count: int) -> None:
        self._how, (theirs, ours) = conversion, conversion.sizes
        self._next, self._end = start // ours, start // ours + count
        self._received = start // theirs
        self._memory = conversion.memory()

    def take(self, block: Any) -> list[memoryview]:
        """Take the next block of theirs, a buffer; returns the blocks of ours that are complete with it."""
        (theirs, ours), group = self._how.sizes, self._how.group
        size, place = self._how.bytes[0], self._received * theirs % group // theirs
        self._memory.reshape(-1)[place * size : (place + 1) * size] = np.frombuffer(block, np.uint8)
        self._received += 1
        found = []
        while self._next < self._end and (self._next + 1) * ours <= self._received * theirs:
            found.append(self._how.made(self._memory, self._next * ours % group // ours))
            self._next += 1
        return found


@lru_cache(8)
def conversion(theirs: BlockForm, their_size: int, ours: BlockForm, our_size: int) -> Conversion:
    """A `Conversion`, which is kept: it takes some milliseconds to make."""
    return Conversion((theirs, their_size), (ours, our_size))


def _places(form: BlockForm, block_size: int) -> dict[_Place, Sequence[int]]:
    """The first bytes of each head's run of tokens, on each rank that has the head."""
    found: dict[_Place, list[int]] = {}
    at = 0
    for layers in form.ranks:
        for layer, first, heads in layers:
            for part, row in enumerate(form.rows[layer]):
                for head in range(heads):
                    found.setdefault((layer, part, first + head), []).append(at + head * block_size * row)
                at += _padded(heads * block_size * row, form.align)
    return dict(found)


def _padded(size: int, align: int) -> int:
    return -(-size // align) * align
