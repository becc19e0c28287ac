"""Chips that the kernels are compiled for where none is at hand: limits and what their matrix units are called.

Shared memory is what one block may have at the most (vendors' programming guides). Compiling does not refuse more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["CHIPS", "Chip"]


@dataclass(frozen=True, slots=True)
class Chip:
    """One compile target."""

    name: str
    backend: str
    """Triton's name of its code generator."""
    arch: int | str
    lanes: int
    """Threads of a warp."""
    shared: int
    """Bytes a block."""
    fp8: str
    tile: int
    stages: int
    """These three as in `Config`."""
    matrix: Mapping[str, str]
    """By operands (`float16`, `int8`, `fp8`; `any` where the tile is too small for the widest unit), the instruction that a product of them must hold, as a regular expression."""

    @property
    def extra(self) -> dict[str, object]:
        """What a platform with this chip says of it in `Capabilities.extra`."""
        return {
            "triton_fp8": self.fp8,
            "triton_lanes": self.lanes,
            "triton_tile": self.tile,
            "triton_stages": self.stages,
        }


def _nvidia(number: int, shared_kib: int, fp8: str, half: str, int8: str, quarter: str) -> Chip:
    names = {"float16": half, "int8": int8, "fp8": quarter if fp8 else half, "any": "MMA"}
    return Chip(f"sm_{number}", "cuda", number, 32, shared_kib << 10, fp8, 64, 3, MappingProxyType(names))


def _amd(arch: str, lanes: int, shared_kib: int, fp8: str, stages: int, name: str) -> Chip:
    half, int8 = rf"{name}_f32_\w*b?f16", rf"{name}_i32_\w*i?u?8"
    quarter = rf"{name}_f32_\w*(?:fp8|f8f6f4)" if fp8 else half
    names = MappingProxyType({"float16": half, "int8": int8, "fp8": quarter, "any": name})
    return Chip(arch, "hip", arch, lanes, shared_kib << 10, fp8, 32, stages, names)


CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        chip.name: chip
        for chip in (
            _nvidia(80, 163, "", "HMMA", "IMMA", ""),
            _nvidia(89, 99, "ocp", "HMMA", "IMMA", "QMMA"),
            _nvidia(90, 227, "ocp", "HGMMA", "IGMMA", "QGMMA"),
            _nvidia(100, 227, "ocp", "UTCHMMA", "UTCIMMA|IMMA", "UTCQMMA"),
            _nvidia(120, 99, "ocp", "HMMA", "IMMA", "QMMA"),
            _amd("gfx90a", 64, 64, "", 2, "v_mfma"),
            _amd("gfx942", 64, 64, "fnuz", 2, "v_mfma"),
            _amd("gfx950", 64, 160, "ocp", 2, "v_mfma"),
            _amd("gfx1100", 32, 64, "", 1, "v_wmma"),
            _amd("gfx1201", 32, 64, "ocp", 2, "v_wmma"),
        )
    }
)
"""By name."""
