"""The gated activation: SiLU or GELU of the first half of a row, times the second half (arXiv:2002.05202)."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="gated_activation",
    reference_path="headrace.kernels.gated_activation.reference:gated_activation",
    generate_path="headrace.kernels.gated_activation.generate:generate",
    tolerance={"float32": 1e-10, "bfloat16": 1e-5, "float16": 1e-6},
)
