"""Capabilities of Intel GPUs by the properties that Level Zero reports."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import PlatformError
from headrace.kernels.tritonlib.chip import TritonChip
from headrace.types import QUANT_FORMATS, Capabilities

__all__ = ["XpuProperties", "capabilities", "triton_chip"]

_LOCAL = 64 * 1024


@dataclass(frozen=True, slots=True)
class XpuProperties:
    """The properties that the driver reports for a device."""

    name: str
    subgroups: tuple[int, ...]
    """Supported sub-group sizes."""
    multiprocessors: int
    """Xe cores."""
    half: bool = True
    bfloat16: bool = True
    """Conversions in hardware."""
    matrix: bool = True
    """Has matrix engines (XMX)."""
    shared_memory: int = 0
    """Bytes of local memory per work-group; 0 if torch doesn't report it."""


def capabilities(chip: XpuProperties) -> Capabilities:
    """The capabilities of a chip. Raises PlatformError for a chip without 16-bit floats. No generation so far has 8-bit
    floats in its matrix engines."""
    if not chip.half:
        raise PlatformError(f"xpu: {chip.name} has no 16-bit floats, which the kernels need")
    floats = {"float32", "float16"} | ({"bfloat16"} if chip.bfloat16 else set())
    return Capabilities(
        dtypes=frozenset(floats | {"quantized"}),
        kv_dtypes=frozenset(floats | {"int8", "float8_e4m3"}),
        quant_formats=QUANT_FORMATS,
        block_sizes=(16, 32, 64, 128, 256),
        async_exec=True,
        attention_features=frozenset({"gqa", "sliding_window", "soft_cap", "sinks", "alibi"}),
        max_tokens_per_step=16384,
    )


def triton_chip(chip: XpuProperties) -> TritonChip:
    """The chip for Triton. Kernels are launched in units of 32 lanes; the compiler chooses the sub-group size."""
    width = 16 if 16 in chip.subgroups or not chip.subgroups else max(chip.subgroups)
    return TritonChip(
        lanes=32,
        tile=32,
        stages=2,
        target=("xpu", chip.name, width),
        shared_memory=chip.shared_memory or _LOCAL,
    )
