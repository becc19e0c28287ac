"""The scan of Mamba-2 (SSD, arXiv:2405.21060)."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="mamba2_scan",
    reference_path="headrace.kernels.mamba2_scan.reference:mamba2_scan",
    generate_path="headrace.kernels.mamba2_scan.generate:generate",
    tolerance={"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5},
)
