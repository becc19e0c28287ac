"""Work lists of ragged batches, in jax.numpy: their shapes depend only on the bucket, their contents on the batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

__all__ = ["StripWork", "TileWork", "strips", "tiles"]

Array = Any


class TileWork(NamedTuple):
    """Queries in tiles of one sequence each; all arrays are int32. W = S + ceil(T / tile) is enough for every batch."""

    rows: Array
    """[W, tile]: the token of each row; if the tile is not full, the last row's token is repeated."""
    sequence: Array
    """[W]"""
    first: Array
    """[W]: position of the first row."""
    count: Array
    """[W]: rows in use; 0: the tile is empty."""
    place: Array
    """[T]: tile * size + row of each token."""


def tiles(query_start: Array, positions: Array, size: int) -> TileWork:
    """The tiles for `query_start` [S + 1] and `positions` [T].

    Tokens past the last sequence are padding; their place is 0.
    """
    tokens, sequences = positions.shape[0], query_start.shape[0] - 1
    most = sequences + -(-tokens // size)
    length = query_start[1:] - query_start[:-1]
    ends = jnp.cumsum((length + size - 1) // size)
    index = jnp.arange(most, dtype=jnp.int32)
    sequence = jnp.minimum(jnp.searchsorted(ends, index, side="right"), sequences - 1).astype(jnp.int32)
    before = jnp.where(sequence > 0, ends[sequence - 1], 0)
    start = query_start[sequence] + (index - before) * size
    count = jnp.where(index < ends[-1], jnp.clip(query_start[sequence + 1] - start, 0, size), 0)
    rows = jnp.minimum(start[:, None] + jnp.arange(size), jnp.maximum(start + count - 1, 0)[:, None])
    rows = jnp.clip(rows, 0, tokens - 1)
    token = jnp.arange(tokens, dtype=jnp.int32)
    owner = jnp.minimum(jnp.searchsorted(query_start[1:], token, side="right"), sequences - 1)
    within = token - query_start[owner]
    tile = jnp.where(owner > 0, ends[owner - 1], 0) + within // size
    place = jnp.where(token < query_start[-1], tile * size + within % size, 0)
    first = positions[jnp.clip(start, 0, tokens - 1)]
    return TileWork(*(x.astype(jnp.int32) for x in (rows, sequence, first, count, place)))


class StripWork(NamedTuple):
    """The rows to write in each strip of `size` rows of a cache block; all arrays are int32."""

    block: Array
    """[W]"""
    strip: Array
    """[W]: index within the block."""
    low: Array
    high: Array
    """[W]: rows low to high - 1 are written; if equal, none."""
    token: Array
    """[W]: the token whose row is written at `low`; the next tokens follow."""


def strips(slots: Array, block_size: int, size: int, sequences: int) -> StripWork:
    """The strips for `slots` [T] (block * block_size + offset); the tokens of a sequence are consecutive.

    A run of slots that crosses the end of a strip is split. W = min(T, T // size + 2 S) is enough: all strips of a run
    are full, except the first and the last. A run in block 0 is padding.
    """
    tokens = slots.shape[0]
    most = min(tokens, tokens // size + 2 * sequences + 1)
    index = jnp.arange(tokens, dtype=jnp.int32)
    last = jnp.concatenate([jnp.full((1,), -2, slots.dtype), slots[:-1]])
    padding = slots < block_size
    begins = ((slots != last + 1) | (slots % size == 0)) & ~padding
    starts = jnp.nonzero(begins, size=most, fill_value=tokens)[0].astype(jnp.int32)
    # A run ends where the next one begins or where padding does.
    breaks = begins | padding
    following = jnp.where(breaks, index, tokens)
    ends = jnp.flip(jnp.minimum.accumulate(jnp.flip(jnp.concatenate([following, jnp.array([tokens])]))))
    used = starts < tokens
    token = jnp.minimum(starts, tokens - 1)
    end = ends[jnp.minimum(starts + 1, tokens)]
    slot = slots[token]
    low = slot % size
    high = jnp.where(used, low + end - starts, low)
    block = jnp.where(used, slot // block_size, 0)
    strip = jnp.where(used, slot % block_size // size, 0)
    return StripWork(*(x.astype(jnp.int32) for x in (block, strip, low, high, token)))
