"""Rows of the embedding table."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="embedding",
    reference_path="headrace.kernels.embedding.reference:embedding",
    generate_path="headrace.kernels.embedding.generate:generate",
    tolerance={"float32": 1e-10, "bfloat16": 1e-5, "float16": 1e-6},
)
