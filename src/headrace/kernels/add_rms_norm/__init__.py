"""Residual addition and root-mean-square norm in one."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="add_rms_norm",
    reference_path="headrace.kernels.add_rms_norm.reference:add_rms_norm",
    generate_path="headrace.kernels.add_rms_norm.generate:generate",
    tolerance={"float32": 1e-10, "bfloat16": 1e-5, "float16": 1e-6},
)
