"""The properties of a chip that the Triton operators use, as its platform reports them.

Imports no torch and no triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Codes", "Lanes", "Stages", "TritonChip"]

Codes = Literal["", "ocp", "fnuz"]
Lanes = Literal[32, 64]
Stages = Literal[1, 2, 3, 4]


@dataclass(frozen=True, slots=True)
class TritonChip:
    """One chip. Its kernels are compiled for `target` and checked against `shared_memory`."""

    fp8: Codes = ""
    """E4M3 of the matrix unit: `ocp`, `fnuz` (the same bits except for zero, half the value), or "" for none: E4M3 is
    then widened to 16 bits."""
    lanes: Lanes = 32
    """Threads per warp."""
    tile: Literal[64, 32] = 64
    """Rows and keys of one step of attention that fit the chip's registers."""
    stages: Stages = 3
    """Pipeline stages of a product's loop that fit its shared memory, or its registers if loads go through them."""
    target: tuple[str, int | str, int] = ("", "", 32)
    """Triton's backend, its name of the architecture, and the threads per warp that it compiles for."""
    shared_memory: int = 0
    """The largest shared memory of one block, in bytes."""
