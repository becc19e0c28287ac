"""The scan of the gated delta rule (Gated DeltaNet, arXiv:2412.06464), used by Qwen3-Next's linear attention."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="gated_delta_rule",
    reference_path="headrace.kernels.gated_delta_rule.reference:gated_delta_rule",
    generate_path="headrace.kernels.gated_delta_rule.generate:generate",
    tolerance={"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5},
)
