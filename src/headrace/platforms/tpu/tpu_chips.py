"""The generations of TPUs. Source: Google's public tables (Cloud TPU system architecture)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.types import COLLECTIVES, QUANT_FORMATS, Capabilities

__all__ = ["CHIPS", "HOST", "TpuChip", "capabilities"]

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class TpuChip:
    """One generation."""

    name: str
    memory: int
    """Bytes per chip."""
    kernels: bool = True
    """Runs Mosaic kernels."""


CHIPS: Mapping[str, TpuChip] = MappingProxyType(
    {
        "0x005e": TpuChip("TPU v4", 32 * _GIB),
        "0x0062": TpuChip("TPU v5p", 95 * _GIB),
        "0x0063": TpuChip("TPU v5e", 16 * _GIB),
        "0x006f": TpuChip("TPU v6e", 32 * _GIB),
        "0x0076": TpuChip("TPU 7x", 192 * _GIB),
    }
)
"""PCI device id → generation."""
HOST = TpuChip("XLA on the host", 0, kernels=False)


def capabilities(chip: TpuChip, ranks: int) -> Capabilities:
    """The capabilities of a chip. Blocks of 128 are preferred: a page is then one long copy, and its keys fill the
    lanes of a product."""
    return Capabilities(
        dtypes=frozenset({"float32", "bfloat16", "quantized"}),
        kv_dtypes=frozenset({"float32", "bfloat16", "int8"}),
        quant_formats=QUANT_FORMATS,  # a kernel reads codes of int8 and int4; other formats are dequantized at load
        block_sizes=(128, 64, 32, 256),
        static_shapes=True,
        in_place_kv=False,
        async_exec=True,
        collectives=COLLECTIVES if ranks > 1 else frozenset(),
        attention_features=frozenset({"gqa", "sliding_window", "soft_cap", "sinks", "alibi"}),
        max_tokens_per_step=4096,
        host_memory=False,
    )
