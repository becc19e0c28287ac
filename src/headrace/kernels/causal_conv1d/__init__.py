"""The short causal convolution before a linear-attention or state-space scan."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="causal_conv1d",
    reference_path="headrace.kernels.causal_conv1d.reference:causal_conv1d",
    generate_path="headrace.kernels.causal_conv1d.generate:generate",
    tolerance={"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5},
)
