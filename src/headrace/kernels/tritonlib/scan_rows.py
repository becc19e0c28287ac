"""Device functions of the scans over a recurrent state (`kernels.recurrence`). Requires triton."""

from __future__ import annotations

import triton.language as tl
from triton.language import tensor

from headrace.kernels.tritonlib.device import jit, next_power
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["keep_kernel", "load_gate", "load_rows", "part_of", "rows_of"]


def part_of(outer: int, inner: int, wide: bool, config: LaunchConfig) -> tuple[int, int, int]:
    """(elements of a state's outer dimension per program, elements of its inner dimension per step, warps).

    Small tiles with narrow warps hold fewer elements, especially of float32 (`wide`).
    """
    narrow = config.tile == 32 and config.lanes == 32
    piece = min(next_power(inner, 16), 16 if narrow and wide else 32)
    return min(next_power(outer, 16), config.tile // 2), piece, 128 // config.lanes


@jit
def rows_of(chunk: tensor, before: tensor, context: tensor, start: tensor, CHUNK: tl.constexpr) -> tensor:
    """(index in the batch, whether from this call, whether from an earlier call) of a chunk's tokens, [CHUNK] each."""
    position = chunk * CHUNK + tl.arange(0, CHUNK)
    return start + position - before, (position >= before) & (position < context), position < before


@jit
def load_rows(
    inputs: tensor, pending: tensor, token: tensor, first: tensor, row: tensor, fresh: tensor, old: tensor, dim: tensor,
    inside: tensor, WIDTH: tl.constexpr, SKIP: tl.constexpr, KEPT: tl.constexpr,
) -> tensor:  # fmt: skip
    """[CHUNK, len(dim)] in the inputs' dtype: elements first + dim of the stored inputs of a token, from this call or
    an earlier one."""
    place = token[:, None] * WIDTH + SKIP + first + dim[None, :]
    new = tl.load(inputs + place, fresh[:, None] & inside[None, :], 0.0)
    kept = tl.load(pending + row[:, None] * KEPT + first + dim[None, :], old[:, None] & inside[None, :], 0.0)
    return tl.where(old[:, None], kept.to(new.dtype), new)


@jit
def load_gate(
    gate: tensor, pending: tensor, token: tensor, head: tensor, row: tensor, fresh: tensor, old: tensor,
    HEADS: tl.constexpr, FIRST: tl.constexpr, KEPT: tl.constexpr,
) -> tensor:  # fmt: skip
    """One head's gate, float32 [CHUNK], with zeros for missing tokens."""
    new = tl.load(gate + token * HEADS + head, fresh, 0.0).to(tl.float32)
    return tl.where(old, tl.load(pending + row * KEPT + FIRST + head, old, 0.0), new)


@jit
def _copy(source: tensor, target: tensor, COUNT: tl.constexpr, BLOCK: tl.constexpr) -> None:
    for first in range(0, COUNT, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(source + at, at < COUNT, 0.0).to(tl.float32), at < COUNT)


@jit
def keep_kernel(
    pending: tensor, first: tensor, second: tensor, third: tensor, query_start: tensor, context_lens: tensor,
    slots: tensor, WIDTH: tl.constexpr, SKIP: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    THIRD: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per sequence and row of its unfinished chunk: copies a token's inputs of this call to `pending`, side
    by side. Of a row of `first` (WIDTH elements), it copies elements SKIP to SKIP + FIRST - 1."""
    seq, row = tl.program_id(0), tl.program_id(1)
    start, context = tl.load(query_start + seq).to(tl.int64), tl.load(context_lens + seq)
    before = context - (tl.load(query_start + seq + 1) - start).to(tl.int32)
    position = context // CHUNK * CHUNK + row
    if (position >= before) & (position < context):
        token = start + position - before
        target = pending + (tl.load(slots + seq).to(tl.int64) * CHUNK + row) * (FIRST + SECOND + THIRD)
        _copy(first + token * WIDTH + SKIP, target, FIRST, BLOCK)
        _copy(second + token * SECOND, target + FIRST, SECOND, BLOCK)
        if third is not None:
            _copy(third + token * THIRD, target + FIRST + SECOND, THIRD, BLOCK)
