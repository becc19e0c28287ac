"""Product with a weight in any scheme, and its bias."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="linear",
    reference_path="headrace.kernels.linear.reference:linear",
    generate_path="headrace.kernels.linear.generate:generate",
    tolerance={"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5},
)
