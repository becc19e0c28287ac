"""The requested rows of activations."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="take_rows",
    reference_path="headrace.kernels.take_rows.reference:take_rows",
    generate_path="headrace.kernels.take_rows.generate:generate",
    tolerance={"float32": 1e-12, "bfloat16": 1e-12, "float16": 1e-12},
)
