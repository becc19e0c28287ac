"""Products with int8 and int4 weights in groups on a TPU: codes are converted in the kernel, never in memory.

Columns form units of 128 with one scale and one zero point per row; a longer group repeats its values. `codes` are int8
[N, K], or int8 [N, K / 2] in which the run r of 128 bytes holds units 2 r (low halves) and 2 r + 1 (high halves), so
that no lane is exchanged.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

__all__ = ["UNIT", "product"]

Array = Any
UNIT = 128
_ROWS, _COLUMNS = 128, 512
"""The largest number of rows of x and of the weight in a grid step."""
_UNITS = 8
"""The largest number of units in a grid step: each is a separate product, and every step costs a third of a microsecond
independently of its size."""


def product(x: Array, codes: Array, scales: Array, zeros: Array, *, bits: int, interpret: Any = False) -> Array:
    """float32 [T, N]: x [T, K] times ((codes - zeros) scales)^T; scales and zeros float32 [K / 128, N], K / 128 even
    for int4."""
    tokens, rows, units = x.shape[0], codes.shape[0], scales.shape[0]
    step = next(n for n in (_UNITS, 4, 2, 1) if units % n == 0)
    height, width = min(_ROWS, -(-tokens // 16) * 16), min(_COLUMNS, -(-rows // UNIT) * UNIT)
    x = jnp.pad(x, ((0, -tokens % height), (0, 0)))
    codes = jnp.pad(codes, ((0, -rows % width), (0, 0)))
    scales, zeros = (jnp.pad(a, ((0, 0), (0, -rows % width))) for a in (scales, zeros))
    of_row = pl.BlockSpec((units, width), lambda i, j, k: (0, j))
    call = pl.pallas_call(
        functools.partial(_kernel, bits, step),
        grid=(x.shape[0] // height, codes.shape[0] // width, units // step),
        in_specs=[
            pl.BlockSpec((height, step * UNIT), lambda i, j, k: (i, k)),
            pl.BlockSpec((width, step * UNIT * bits // 8), lambda i, j, k: (j, k)),
            of_row,
            of_row,
        ],
        out_specs=pl.BlockSpec((height, width), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], codes.shape[0]), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
        name=f"headrace_product_int{bits}",
    )
    return call(x, codes, scales, zeros)[:tokens, :rows]


def _kernel(bits: int, units: int, x: Any, codes: Any, scales: Any, zeros: Any, out: Any) -> None:
    step = pl.program_id(2)

    def begin() -> None:
        out[...] = jnp.zeros_like(out)

    pl.when(step == 0)(begin)
    for unit in range(units):
        seen = x[:, unit * UNIT : (unit + 1) * UNIT]
        made = _dot(seen, _unit(bits, codes, unit).astype(jnp.float32).astype(seen.dtype))
        row = pl.ds(step * units + unit, 1)
        # There is one zero point per row: its contribution is the sum of the inputs times it.
        sums = jnp.sum(seen.astype(jnp.float32), axis=1, keepdims=True)
        out[...] += (made - sums * zeros[row, :]) * scales[row, :]


def _unit(bits: int, codes: Any, unit: int) -> Any:
    """int32 [N, 128]"""
    if bits == 8:
        return codes[:, unit * UNIT : (unit + 1) * UNIT].astype(jnp.int32)
    run = codes[:, unit // 2 * UNIT : (unit // 2 + 1) * UNIT].astype(jnp.int32)
    return (run >> 4) & 15 if unit % 2 else run & 15


def _dot(a: Any, b: Any) -> Any:
    exact = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32, precision=exact)
