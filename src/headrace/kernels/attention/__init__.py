"""Causal attention over the paged cache."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="attention",
    reference_path="headrace.kernels.attention.reference:attention",
    generate_path="headrace.kernels.attention.generate:generate",
    tolerance={"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5},
)
