"""The occupancy of a kernel: the warps that a multiprocessor holds at once, which hide memory latency.

Limits are those of the vendors' programming guides and of LLVM's AMDGPU backend. Scalar registers are left out: they
bind on no kernel here before the vector registers do.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Multiprocessor", "resident_warps"]


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """The limits of one streaming multiprocessor, compute unit or work-group processor."""

    warps: int
    """At the most in one part."""
    granule: int
    """Vector registers of a warp are given out in these."""
    registers: int = 512
    """Vector registers of one part: the sum over its warps of what a thread takes."""
    parts: int = 4
    """Schedulers, each with registers of its own; the warps of a block are spread over them."""
    blocks: int = 64
    """At the most."""
    barriers: int = 64
    """Blocks of more than one warp at the most."""
    shared: int = 0
    """Bytes for all blocks."""
    shared_granule: int = 128
    reserved: int = 0
    """Bytes of `shared` that the system takes for every block."""
    columns: int = 0
    """Of tensor memory, in which the matrix unit leaves its results; 0: there is none."""

    @property
    def most(self) -> int:
        """Warps at the most."""
        return self.warps * self.parts


def resident_warps(unit: Multiprocessor, warps: int, registers: int, shared: int, columns: int = 0) -> int:
    """The warps of all blocks that fit, for blocks of `warps` warps, `registers` per thread, `shared` bytes and
    `columns` of tensor memory. 0: no block fits."""
    taken = -(-max(registers, 1) // unit.granule) * unit.granule
    of_part = min(unit.warps, unit.registers // taken)
    blocks = min(unit.blocks if warps == 1 else min(unit.blocks, unit.barriers), of_part * unit.parts // warps)
    if shared + unit.reserved:
        block = -(-(shared + unit.reserved) // unit.shared_granule) * unit.shared_granule
        blocks = min(blocks, unit.shared // block)
    if columns:
        blocks = min(blocks, unit.columns // columns)
    return blocks * warps
