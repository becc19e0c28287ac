"""The language-model head on the requested rows."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="logits",
    reference_path="headrace.kernels.logits.reference:logits",
    generate_path="headrace.kernels.logits.generate:generate",
    tolerance={"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5},
)
