"""The chips that kernels are compiled for without a device: their limits and the names of their matrix instructions.

`Chip.shared` is what one block may have at the most, `Chip.unit.shared` what all blocks share (vendors' programming
guides). Compiling does not refuse more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from compile_report.occupancy import Multiprocessor
from headrace.kernels.tritonlib.chip import Codes, Lanes, Stages, TritonChip

__all__ = ["CHIPS", "Chip"]


@dataclass(frozen=True, slots=True)
class Chip:
    """One compile target."""

    name: str
    backend: str
    """Triton's backend."""
    arch: int | str
    lanes: Lanes
    """Threads per warp."""
    shared: int
    """Bytes per block."""
    fp8: Codes
    tile: Literal[64, 32]
    stages: Stages
    """These three as in `TritonChip`."""
    unit: Multiprocessor
    matrix: Mapping[str, str]
    """By operands (`float16`, `int8`, `fp8`; `any` where the tile is too small for the widest unit), the instruction
    that a product of them must hold, as a regular expression."""

    @property
    def triton(self) -> TritonChip:
        """The properties that a platform with this chip reports."""
        target = (self.backend, self.arch, self.lanes)
        return TritonChip(self.fp8, self.lanes, self.tile, self.stages, target, self.shared)


def _nvidia(
    number: int,
    shared_kib: int,
    warps: int,
    blocks: int,
    fp8: Codes,
    half: str,
    int8: str,
    quarter: str,
    columns: int = 0,
) -> Chip:
    names = MappingProxyType({"float16": half, "int8": int8, "fp8": quarter if fp8 else half, "any": "MMA"})
    shared = shared_kib + 1 << 10  # the system reserves 1 KiB of it per block
    unit = Multiprocessor(warps // 4, 8, blocks=blocks, shared=shared, reserved=1024, columns=columns)
    return Chip(f"sm_{number}", "cuda", number, 32, shared_kib << 10, fp8, 64, 3, unit, names)


def _cdna(shared_kib: int, shared_granule: int = 512) -> Multiprocessor:
    return Multiprocessor(8, 8, barriers=16, shared=shared_kib << 10, shared_granule=shared_granule)


_RDNA = Multiprocessor(16, 24, registers=1536, barriers=32, shared=128 << 10, shared_granule=512)
"""A work-group processor: two compute units, whose shared memory triton's blocks use together."""


def _amd(arch: str, lanes: Lanes, shared_kib: int, unit: Multiprocessor, fp8: Codes, stages: Stages, name: str) -> Chip:
    half, int8 = rf"{name}_f32_\w*b?f16", rf"{name}_i32_\w*i?u?8"
    quarter = rf"{name}_f32_\w*(?:fp8|f8f6f4)" if fp8 else half
    names = MappingProxyType({"float16": half, "int8": int8, "fp8": quarter, "any": name})
    return Chip(arch, "hip", arch, lanes, shared_kib << 10, fp8, 32, stages, unit, names)


CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        chip.name: chip
        for chip in (
            _nvidia(80, 163, 64, 32, "", "HMMA", "IMMA", ""),
            _nvidia(89, 99, 48, 24, "ocp", "HMMA", "IMMA", "QMMA"),
            _nvidia(90, 227, 64, 32, "ocp", "HGMMA", "IGMMA", "QGMMA"),
            _nvidia(100, 227, 64, 32, "ocp", "UTCHMMA", "UTCIMMA|IMMA", "UTCQMMA", columns=512),
            _nvidia(120, 99, 48, 24, "ocp", "HMMA", "IMMA", "QMMA"),
            _amd("gfx90a", 64, 64, _cdna(64), "", 2, "v_mfma"),
            _amd("gfx942", 64, 64, _cdna(64), "fnuz", 2, "v_mfma"),
            _amd("gfx950", 64, 160, _cdna(160, 1280), "ocp", 2, "v_mfma"),
            _amd("gfx1100", 32, 64, _RDNA, "", 1, "v_wmma"),
            _amd("gfx1201", 32, 64, _RDNA, "ocp", 2, "v_wmma"),
        )
    }
)
"""The chips by name."""
