"""The first half of a gated MLP as one operator: the product with gate and up, and its gated activation."""

from __future__ import annotations

from typing import Any

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC", "compose"]

SPEC = OpSpec(
    name="gated_linear",
    reference_path="headrace.kernels.gated_linear.reference:gated_linear",
    generate_path="headrace.kernels.gated_linear.generate:generate",
    tolerance={"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5},
    compose_path="headrace.kernels.gated_linear:compose",
)


def compose(ops: Any) -> Any:
    """The operator composed of `linear` and `gated_activation`."""

    def gated_linear(x: Any, weight: Any, kind: str) -> Any:
        return ops.gated_activation(ops.linear(x, weight), kind)

    return gated_linear
