"""Reads rows of hidden features from the paged cache."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="load_features",
    reference_path="headrace.kernels.load_features.reference:load_features",
    generate_path="headrace.kernels.load_features.generate:generate",
    tolerance={"float32": 1e-12, "bfloat16": 1e-12, "float16": 1e-12},
)
