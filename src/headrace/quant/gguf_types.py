"""GGUF's type numbers and sizes, without torch: what a header is checked with (ggml's `ggml.h` and `ggml-common.h`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["BLOCK_SIZES", "FLOAT_BYTES"]

FLOAT_BYTES: Mapping[int, int] = MappingProxyType({0: 4, 1: 2, 30: 2})
"""Bytes of a value by type number, of F32, F16 and BF16."""
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
"""(name, values a block, bytes a block) by type number."""
