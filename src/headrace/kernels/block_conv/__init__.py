"""The causal convolution over the rows of a drafted block, with a kernel that depends on the input (DFlash2)."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="block_conv",
    reference_path="headrace.kernels.block_conv.reference:block_conv",
    generate_path="headrace.kernels.block_conv.generate:generate",
    tolerance={"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5},
)
