"""Logits of one draft of each block, with what the token before it adds to them."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="correct_logits",
    reference_path="headrace.kernels.correct_logits.reference:correct_logits",
    generate_path="headrace.kernels.correct_logits.generate:generate",
    tolerance={"float32": 1e-12, "bfloat16": 1e-12, "float16": 1e-12},
)
