"""Logits of a reduced vocabulary as logits of the whole one."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="widen_logits",
    reference_path="headrace.kernels.widen_logits.reference:widen_logits",
    generate_path="headrace.kernels.widen_logits.generate:generate",
    tolerance={"float32": 1e-12, "bfloat16": 1e-12, "float16": 1e-12},
)
