"""The logprobs of tokens that a request names."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="named_logprobs",
    reference_path="headrace.kernels.named_logprobs.reference:named_logprobs",
    generate_path="headrace.kernels.named_logprobs.generate:generate",
    tolerance={"float32": 1e-12, "bfloat16": 1e-12, "float16": 1e-12},
)
