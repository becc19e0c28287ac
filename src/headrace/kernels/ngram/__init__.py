"""Drafts of the next tokens from each sequence's own text, on the device."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="ngram",
    reference_path="headrace.kernels.ngram.reference:ngram",
    generate_path="headrace.kernels.ngram.generate:generate",
    tolerance={"float32": 0.0, "bfloat16": 0.0, "float16": 0.0},
)
