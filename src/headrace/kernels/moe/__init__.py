"""Mixture of experts: routing, the chosen experts' gated products, and their weighted sum (arXiv:2101.03961)."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="moe",
    reference_path="headrace.kernels.moe.reference:moe",
    generate_path="headrace.kernels.moe.generate:generate",
    tolerance={"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5},
)
