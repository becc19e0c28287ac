"""GGUF's type numbers and sizes, without torch, for the check of headers (ggml's `ggml.h` and `ggml-common.h`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["BLOCK_SIZES", "FLOAT_BYTES", "TYPE_NAMES"]

FLOAT_BYTES: Mapping[int, int] = MappingProxyType({0: 4, 1: 2, 30: 2})
"""Bytes per value by type number: F32, F16 and BF16."""
BLOCK_SIZES: Mapping[int, tuple[str, int, int]] = MappingProxyType(
    {
        2: ("q4_0", 32, 18),
        3: ("q4_1", 32, 20),
        6: ("q5_0", 32, 22),
        7: ("q5_1", 32, 24),
        8: ("q8_0", 32, 34),
        10: ("q2_k", 256, 84),
        11: ("q3_k", 256, 110),
        12: ("q4_k", 256, 144),
        13: ("q5_k", 256, 176),
        14: ("q6_k", 256, 210),
        20: ("iq4_nl", 32, 18),
        23: ("iq4_xs", 256, 136),
        39: ("mxfp4", 32, 17),
    }
)
"""(name, values per block, bytes per block) by type number."""
TYPE_NAMES: Mapping[int, str] = MappingProxyType(
    {
        9: "Q8_1",
        15: "Q8_K",
        16: "IQ2_XXS",
        17: "IQ2_XS",
        18: "IQ3_XXS",
        19: "IQ1_S",
        21: "IQ3_S",
        22: "IQ2_S",
        24: "I8",
        25: "I16",
        26: "I32",
        27: "I64",
        28: "F64",
        29: "IQ1_M",
        34: "TQ1_0",
        35: "TQ2_0",
        40: "NVFP4",
    }
)
"""Names of the type numbers that are not supported, for error messages."""
