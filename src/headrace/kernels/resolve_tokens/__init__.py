"""The token ids of a step; those that are only on the device are read from its history."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="resolve_tokens",
    reference_path="headrace.kernels.resolve_tokens.reference:resolve_tokens",
    generate_path="headrace.kernels.resolve_tokens.generate:generate",
    tolerance={"float32": 0.0},
)
