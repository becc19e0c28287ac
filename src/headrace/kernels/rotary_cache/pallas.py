"""Writes keys or values to the paged cache on a TPU, in place: reads, changes and writes the strips that a step
affects.

A TPU copies memory by tiles of 8 to 32 rows, so that a single row cannot be written.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from headrace.kernels.pallaslib.work_lists import strips

__all__ = ["strip_rows", "write"]

Array = Any


def strip_rows(dtype: Any, block_size: int) -> int:
    """Rows per memory tile of this type."""
    return min(32 // int(jnp.dtype(dtype).itemsize), block_size)


def write(cache: Array, slots: Array, rows: Array, *, sequences: int, interpret: Any = False) -> Array:
    """Write `rows` [T, Hk, d] to the cache [N, Hk, block, d] at `slots` int32 [T] (block * size + offset), in place.

    The slots of a sequence are consecutive. Padding has slots in block 0, which is not written. `sequences` is the
    largest number of sequences that the T tokens may belong to.
    """
    _, heads, block, size = cache.shape
    height = strip_rows(cache.dtype, block)
    work = strips(slots, block, height, sequences)
    count = work.block.shape[0]
    at = jnp.clip(work.token[:, None] + jnp.arange(height) - work.low[:, None], 0, slots.shape[0] - 1)
    fresh = jnp.swapaxes(rows.astype(cache.dtype)[at], 1, 2)

    def place(step: Any, block_of: Any, strip_of: Any, low: Any, high: Any) -> tuple[Any, ...]:
        return block_of[step], 0, strip_of[step], 0

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=4,
        grid=(count,),
        in_specs=[
            pl.BlockSpec((1, heads, height, size), lambda step, *_: (step, 0, 0, 0)),
            pl.BlockSpec((1, heads, height, size), place),
        ],
        out_specs=pl.BlockSpec((1, heads, height, size), place),
    )
    call = pl.pallas_call(
        _kernel,
        grid_spec=grid,
        out_shape=jax.ShapeDtypeStruct(cache.shape, cache.dtype),
        input_output_aliases={5: 0},
        interpret=interpret,
        name="headrace_kv_write",
    )
    return call(work.block, work.strip, work.low, work.high, fresh, cache)


def _kernel(block: Any, strip: Any, low: Any, high: Any, fresh: Any, before: Any, after: Any) -> None:
    step = pl.program_id(0)
    row = jax.lax.broadcasted_iota(jnp.int32, fresh.shape, 2)
    written = (row >= low[step]) & (row < high[step])
    wide = jnp.int32 if fresh.dtype == jnp.int8 else jnp.float32
    # 8- and 16-bit lanes are widened for the selection: this is exact, and every TPU generation supports it.
    after[...] = jnp.where(written, fresh[...].astype(wide), before[...].astype(wide)).astype(fresh.dtype)
