"""What the Triton operators need to know of a chip, as its platform says it. Imports neither torch nor triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Codes", "Lanes", "Stages", "TritonChip"]

Codes = Literal["", "ocp", "fnuz"]
Lanes = Literal[32, 64]
Stages = Literal[1, 2, 3, 4]


@dataclass(frozen=True, slots=True)
class TritonChip:
    """One chip. `target` and `shared_memory` are what its kernels are compiled and checked for."""

    fp8: Codes = ""
    """E4M3 of the matrix unit: `ocp`, `fnuz` (same bits but for zero, half the value), or none: E4M3 is widened to 16 bits."""
    lanes: Lanes = 32
    """Threads of a warp."""
    tile: Literal[64, 32] = 64
    """Rows and keys of one step of attention: what the chip's registers hold."""
    stages: Stages = 3
    """Steps of a product's loop in flight: what its shared memory (or its registers, where loads go through them) holds."""
    target: tuple[str, int | str, int] = ("", "", 32)
    """Triton's code generator, its name of the architecture, and the lanes that it compiles for."""
    shared_memory: int = 0
    """Bytes that one block may have at the most."""
