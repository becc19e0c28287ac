"""Norms and rotary embedding of queries and keys (arXiv:2104.09864), and the write to the paged cache."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="rotary_cache",
    reference_path="headrace.kernels.rotary_cache.reference:rotary_cache",
    generate_path="headrace.kernels.rotary_cache.generate:generate",
    tolerance={"float32": 1e-10, "bfloat16": 1e-5, "float16": 1e-6},
)
