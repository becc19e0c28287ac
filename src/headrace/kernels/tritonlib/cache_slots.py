"""Where tokens stand in the paged cache."""

from __future__ import annotations

import triton.language as tl
from triton.language import tensor

from headrace.kernels.tritonlib.device import jit

__all__ = ["slot_of"]


@jit
def slot_of(
    block_tables: tensor, blocks: tensor, seq: tensor, position: tensor, there: tensor, SIZE: tl.constexpr
) -> tensor:
    """The slots of positions of sequences, by their block tables [seqs, blocks]; of no use where `there` is not set."""
    column = tl.minimum(tl.maximum(position // SIZE, 0), blocks - 1)
    block = tl.load(block_tables + seq.to(tl.int64) * blocks + column, there, 0)
    return block * SIZE + position % SIZE
