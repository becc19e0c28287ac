"""The number of drafts that were sampled, and the new lengths of their sequences."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="accept",
    reference_path="headrace.kernels.accept.reference:accept",
    generate_path="headrace.kernels.accept.generate:generate",
    tolerance={"float32": 0.0, "bfloat16": 0.0, "float16": 0.0},
)
