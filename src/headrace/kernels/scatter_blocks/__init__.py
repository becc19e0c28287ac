"""Writes whole blocks of the paged cache from bytes."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="scatter_blocks",
    reference_path="headrace.kernels.scatter_blocks.reference:scatter_blocks",
    generate_path="headrace.kernels.scatter_blocks.generate:generate",
    tolerance={"float32": 0.0, "bfloat16": 0.0, "float16": 0.0},
)
