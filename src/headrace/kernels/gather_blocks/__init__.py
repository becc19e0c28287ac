"""Reads whole blocks of the paged cache as bytes."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="gather_blocks",
    reference_path="headrace.kernels.gather_blocks.reference:gather_blocks",
    generate_path="headrace.kernels.gather_blocks.generate:generate",
    tolerance={"float32": 0.0, "bfloat16": 0.0, "float16": 0.0},
)
