"""From logits to tokens: constraints, penalties, truncation, one reproducible draw, logprobs."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="sample",
    reference_path="headrace.kernels.sample.reference:sample",
    generate_path="headrace.kernels.sample.generate:generate",
    tolerance={"float32": 1e-8},
)
