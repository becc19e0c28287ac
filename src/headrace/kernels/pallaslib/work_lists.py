"""Work lists of ragged batches, in jax.numpy: shapes follow the bucket alone, contents the batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

__all__ = ["StripWork", "TileWork", "strips", "tiles"]

Array = Any


class TileWork(NamedTuple):
    """Queries by tiles of one sequence each. W = S + ceil(T / tile) is enough for any batch. int32."""

    rows: Array
    """[W, tile]: token of each row; the last row's again where the tile is not full."""
    sequence: Array
    """[W]"""
    first: Array
    """[W]: position of the first row."""
    count: Array
    """[W]: rows in use; 0: nothing to do."""
    place: Array
    """[T]: tile * size + row of each token."""


def tiles(query_start: Array, positions: Array, size: int) -> TileWork:
    """`query_start` [S + 1], `positions` [T]. Tokens beyond the last sequence's are padding and get place 0."""
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
    """Places of a cache by strips of `size` rows of one block: what is written of each. int32."""

    block: Array
    """[W]"""
    strip: Array
    """[W]: within the block."""
    low: Array
    high: Array
    """[W]: rows low to high - 1 are written; equal: nothing."""
    token: Array
    """[W]: whose row stands at `low`; the next ones follow."""


def strips(slots: Array, block_size: int, size: int, sequences: int) -> StripWork:
    """`slots` [T]: block * block_size + offset; a sequence's tokens follow each other. Runs that a strip's end breaks are two.

    W = min(T, T // size + 2 S) is enough: all but a run's first and last strip are full. A run at block 0 is padding.
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
