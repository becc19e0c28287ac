"""The sum of each token over its experts, out of what the ranks that hold them give."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="mix_experts",
    reference_path="headrace.kernels.mix_experts.reference:mix_experts",
    generate_path="headrace.kernels.mix_experts.generate:generate",
    tolerance={"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5},
)
