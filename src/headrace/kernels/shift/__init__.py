"""The rows of sequences that have fewer tokens than their plan assumes, at their true positions."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="shift",
    reference_path="headrace.kernels.shift.reference:shift",
    generate_path="headrace.kernels.shift.generate:generate",
    tolerance={"float32": 0.0, "bfloat16": 0.0, "float16": 0.0},
)
