"""The size of what `--quantize` makes of matrices, without torch. `quant.online` makes them."""

from __future__ import annotations

__all__ = ["INT4_GROUP", "bytes_of_value", "quantized_bytes"]

INT4_GROUP = 32
"""Columns that share a scale in int4."""
_SCALE = 4


def quantized_bytes(rows: int, columns: int, kind: str) -> int:
    """Bytes of a matrix as `int8` (a float32 scale per row) or `int4` (one per INT4_GROUP columns), scales included."""
    own = columns + _SCALE if kind == "int8" else columns // 2 + _SCALE * columns // INT4_GROUP
    return rows * own


def bytes_of_value(kind: str) -> float:
    """Bytes of a value, scales included, where the shapes of the matrices are not known: those of int8, one in each
    row, are left out."""
    return 1.0 if kind == "int8" else 0.5 + _SCALE / INT4_GROUP
