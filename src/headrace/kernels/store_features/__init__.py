"""Writes rows of hidden features to the paged cache, beside the keys and values of their tokens."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="store_features",
    reference_path="headrace.kernels.store_features.reference:store_features",
    generate_path="headrace.kernels.store_features.generate:generate",
    tolerance={"float32": 1e-12, "bfloat16": 1e-12, "float16": 1e-12},
)
