"""Capabilities of NVIDIA chips by compute capability. Source: CUDA C++ Programming Guide, "Compute Capabilities"."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import PlatformError
from headrace.kernels.tritonlib.chip import TritonChip
from headrace.types import QUANT_FORMATS, Capabilities

__all__ = ["CudaProperties", "capabilities", "triton_chip"]

_LEAST = (7, 0)
_SHARED_KIB = {70: 96, 72: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227}
"""Compute capability → most shared memory of one block in KiB; 99 for chips newer than this table."""


@dataclass(frozen=True, slots=True)
class CudaProperties:
    """The properties that the driver reports for a device."""

    name: str
    major: int
    minor: int
    multiprocessors: int
    shared_memory: int = 0
    """Most bytes of one block (opt-in limit); 0 if torch doesn't report it."""


def capabilities(chip: CudaProperties) -> Capabilities:
    """The capabilities of a chip. Raises PlatformError for chips that Triton and torch no longer support."""
    if (chip.major, chip.minor) < _LEAST:
        raise PlatformError(
            f"cuda: {chip.name} has compute capability {chip.major}.{chip.minor}: 7.0 is the least that is supported"
        )
    number = 10 * chip.major + chip.minor
    floats = {"float32", "float16"} | ({"bfloat16"} if number >= 80 else set())
    return Capabilities(
        dtypes=frozenset(floats | {"quantized"}),
        kv_dtypes=frozenset(floats | {"int8", "float8_e4m3"}),
        quant_formats=QUANT_FORMATS,
        block_sizes=(16, 32, 64, 128, 256),
        async_exec=True,
        attention_features=frozenset({"gqa", "sliding_window", "soft_cap", "sinks", "alibi"}),
        max_tokens_per_step=16384,
    )


def triton_chip(chip: CudaProperties) -> TritonChip:
    """The chip for Triton. Before 8.0 loads go through registers, so tiles and stages are smaller."""
    number = 10 * chip.major + chip.minor
    return TritonChip(
        fp8="ocp" if number >= 89 else "",
        lanes=32,
        tile=64 if number >= 80 else 32,
        stages=3 if number >= 80 else 2,
        target=("cuda", number, 32),
        shared_memory=chip.shared_memory or _SHARED_KIB.get(number, 99) * 1024,
    )
