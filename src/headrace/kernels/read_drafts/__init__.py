"""The drafts that passes of a drafter have written behind the known tokens of placed sequences."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="read_drafts",
    reference_path="headrace.kernels.read_drafts.reference:read_drafts",
    generate_path="headrace.kernels.ngram.generate:generate",
    tolerance={"float32": 0.0, "bfloat16": 0.0, "float16": 0.0},
)
