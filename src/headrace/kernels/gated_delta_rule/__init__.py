"""The gated delta rule's scan (Gated DeltaNet, arXiv:2412.06464), as Qwen3-Next's linear attention calls it."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="gated_delta_rule",
    reference_path="headrace.kernels.gated_delta_rule.reference:gated_delta_rule",
    generate_path="headrace.kernels.gated_delta_rule.generate:generate",
    tolerance={"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5},
)
