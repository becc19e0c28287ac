"""Root-mean-square norm (arXiv:1910.07467)."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="rms_norm",
    reference_path="headrace.kernels.rms_norm.reference:rms_norm",
    generate_path="headrace.kernels.rms_norm.generate:generate",
    tolerance={"float32": 1e-10, "bfloat16": 1e-5, "float16": 1e-6},
)
