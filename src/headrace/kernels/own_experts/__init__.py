"""One rank's share of a mixture of experts: what the experts that it holds give for every token."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="own_experts",
    reference_path="headrace.kernels.own_experts.reference:own_experts",
    generate_path="headrace.kernels.own_experts.generate:generate",
    tolerance={"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5},
)
