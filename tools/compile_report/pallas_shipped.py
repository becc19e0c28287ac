"""The Pallas kernels with the shapes of served models: Llama 8B, heads of 64, and a small model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp

from headrace.kernels.attention.pallas import attention, tile_rows
from headrace.kernels.linear.pallas import UNIT, product
from headrace.kernels.pallaslib import LANES
from headrace.kernels.rotary_cache.pallas import write

__all__ = ["Case", "shipped"]

Case = tuple[Callable[..., Any], list[tuple[tuple[int, ...], Any]], tuple[int, ...]]
"""(function of arrays, shape and dtype of each, which are donated)."""
_BLOCKS = 64


def shipped() -> dict[str, Case]:
    """The kernels by name."""
    bf16, f32, i8 = jnp.bfloat16, jnp.float32, jnp.int8
    return {
        "attention decode bfloat16": _attention(64, 64, (32, 8, 128), bf16, bf16),
        "attention decode int8 cache": _attention(64, 64, (32, 8, 128), bf16, i8),
        "attention decode float32": _attention(16, 16, (8, 2, 64), f32, f32),
        "attention chunks bfloat16": _attention(2048, 16, (32, 8, 128), bf16, bf16),
        "attention chunks int8 cache": _attention(2048, 16, (32, 8, 128), bf16, i8),
        "attention chunks head 64": _attention(512, 8, (14, 2, 64), bf16, bf16, page=64),
        "attention window, soft cap": _attention(512, 8, (8, 4, 256), bf16, bf16, window=1024, soft_cap=50.0),
        "attention sinks, alibi": _attention(512, 8, (64, 8, 64), bf16, bf16, extras=True),
        "cache write decode bfloat16": _write(64, 64, 8, 128, bf16),
        "cache write chunks bfloat16": _write(2048, 16, 8, 128, bf16),
        "cache write chunks int8": _write(2048, 16, 8, 128, i8),
        "cache write chunks float32": _write(512, 16, 2, 128, f32),
        "product int8 decode": _product(64, 4096, 4096, 8, bf16),
        "product int8 chunks": _product(2048, 14336, 4096, 8, bf16),
        "product int4 decode": _product(64, 4096, 14336, 4, bf16),
        "product int4 chunks": _product(2048, 4096, 4096, 4, bf16),
        "product int4 odd rows": _product(16, 1152, 896, 4, bf16),
        "product int8 float32": _product(64, 2048, 2048, 8, f32),
    }


def _attention(
    tokens: int,
    seqs: int,
    heads: tuple[int, int, int],
    dtype: Any,
    store: Any,
    page: int = 128,
    extras: bool = False,
    **static: Any,
) -> Case:
    of_query, of_cache, size = heads
    cache = ((_BLOCKS, of_cache, page, -(-size // LANES) * LANES), store)
    ints = [((seqs + 1,), jnp.int32), ((tokens,), jnp.int32), ((seqs, 32), jnp.int32)]
    scale = [((_BLOCKS, of_cache, page), jnp.float32)] * 2 if store == jnp.int8 else []
    more = [((of_query,), jnp.float32)] * 2 if extras else []
    tile = tile_rows(tokens, seqs, of_query // of_cache)

    def function(q: Any, start: Any, positions: Any, tables: Any, keys: Any, values: Any, *rest: Any) -> Any:
        scales, others = (rest[:2], rest[2:]) if scale else ((None, None), rest)
        others = others or (None, None)
        return attention(
            q,
            start,
            positions,
            tables,
            keys,
            values,
            *scales,
            *others,
            scale=size**-0.5,
            head_dim=size,
            tile=tile,
            **static,
        )

    return function, [((tokens, of_query * size), dtype), *ints, cache, cache, *scale, *more], ()


def _write(tokens: int, seqs: int, heads: int, size: int, dtype: Any) -> Case:
    arguments = [((_BLOCKS, heads, 128, size), dtype), ((tokens,), jnp.int32), ((tokens, heads, size), dtype)]
    return partial(write, sequences=seqs), arguments, (0,)


def _product(tokens: int, columns: int, rows: int, bits: int, dtype: Any) -> Case:
    units = -(-columns // (2 * UNIT)) * 2
    arguments = [((tokens, units * UNIT), dtype), ((rows, units * UNIT * bits // 8), jnp.int8)]
    return partial(product, bits=bits), [*arguments, *[((units, rows), jnp.float32)] * 2], ()
