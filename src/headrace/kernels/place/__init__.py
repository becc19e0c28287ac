"""The rows of sequences whose length only the device knows, and their drafts, at their positions."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="place",
    reference_path="headrace.kernels.place.reference:place",
    generate_path="headrace.kernels.place.generate:generate",
    tolerance={"float32": 0.0, "bfloat16": 0.0, "float16": 0.0},
)
