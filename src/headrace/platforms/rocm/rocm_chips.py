"""Capabilities of AMD chips by architecture name. Source: AMD's instruction set architecture guides, CDNA 2 to 4 and
RDNA 3 and 4."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from headrace.errors import PlatformError
from headrace.kernels.tritonlib.chip import TritonChip
from headrace.types import QUANT_FORMATS, Capabilities

__all__ = ["RocmProperties", "capabilities", "fp8_codes", "triton_chip"]

_NAME = re.compile(r"^gfx(\d+)([0-9a-f])([0-9a-f])$")
_FNUZ = ("gfx90a", "gfx940", "gfx941", "gfx942")
_FEW_REGISTERS = (10, 11)
"""Generations whose registers would spill with a pipelined product."""
_NO_FP8_UNIT = ("gfx90a",)


@dataclass(frozen=True, slots=True)
class RocmProperties:
    """The properties that the driver reports for a device."""

    name: str
    arch: str
    """`gfx942`, features after a colon allowed."""
    multiprocessors: int
    shared_memory: int = 0
    """Bytes per workgroup; 0 if torch doesn't report it."""


def fp8_codes(arch: str) -> Literal["", "fnuz", "ocp"]:
    """The E4M3 format of an architecture: `fnuz` (CDNA 2 and 3), `ocp` (CDNA 4, RDNA 4), empty if it has none."""
    if arch in _FNUZ:
        return "fnuz"
    return "ocp" if arch == "gfx950" or arch.startswith("gfx12") else ""


def capabilities(chip: RocmProperties) -> Capabilities:
    """The capabilities of a chip. Raises PlatformError for an unknown name and for chips without the instructions that
    the kernels need."""
    arch, major, rest = _architecture(chip)
    if major < 9 or (major == 9 and rest < 0x08):
        raise PlatformError(f"rocm: {chip.name} is {arch}: gfx908 is the least that is supported")
    floats = {"float32", "float16"} | (set() if major == 10 else {"bfloat16"})
    return Capabilities(
        dtypes=frozenset(floats | {"quantized"}),
        kv_dtypes=frozenset(floats | {"int8", "float8_e4m3"}),
        quant_formats=QUANT_FORMATS,
        block_sizes=(16, 32, 64, 128, 256),
        async_exec=True,
        attention_features=frozenset({"gqa", "sliding_window", "soft_cap", "sinks", "alibi"}),
        max_tokens_per_step=16384,
    )


def triton_chip(chip: RocmProperties) -> TritonChip:
    """The chip for Triton. Raises PlatformError as `capabilities` does."""
    arch, major, _ = _architecture(chip)
    wave: Literal[32, 64] = 64 if major == 9 else 32
    return TritonChip(
        fp8="" if arch in _NO_FP8_UNIT else fp8_codes(arch),
        lanes=wave,
        tile=32,
        stages=1 if major in _FEW_REGISTERS else 2,
        target=("hip", arch, wave),
        shared_memory=chip.shared_memory or (160 if arch == "gfx950" else 64) * 1024,
    )


def _architecture(chip: RocmProperties) -> tuple[str, int, int]:
    """(name without features, generation, the rest of its number)"""
    arch = chip.arch.partition(":")[0]
    match = _NAME.match(arch)
    if match is None:
        raise PlatformError(f"rocm: {chip.name} reports architecture {chip.arch!r}, which is not a known name")
    return arch, int(match[1]), int(match[2] + match[3], 16)
