"""Launches of the mixture of experts, as `shipped` records them: 128 experts, 8 of them a token, as in Qwen3 30B-A3B;
fewer columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from headrace.kernels.moe.routing import Routing
from headrace.kernels.weight import Weight

__all__ = ["EXPERT_PRODUCTS", "Call", "experts"]

Call = tuple[str, str | None, bool, str, dict[str, Any]]
"""(case, matrix, core, operator, its arguments)"""
EXPERT_PRODUCTS = frozenset({"expert_dense_kernel", "expert_coded_kernel"})
"""Kernels whose products a matrix unit must do."""
_EXPERTS, _SIZE, _TOKENS = 128, 128, 64


def experts() -> Iterator[Call]:
    """Products of every kind of arithmetic."""
    size = _SIZE
    packed, bytes_ = (torch.zeros(size, n, dtype=torch.uint8) for n in (size // 2, size))
    whole, by_32 = torch.ones(size, 1), torch.ones(size, size // 32)
    fp8, int8 = bytes_.view(torch.float8_e4m3fn), bytes_.view(torch.int8)
    plain = Routing(8)
    yield (
        "moe-bfloat16",
        "float16",
        True,
        "moe",
        _mixture(_part("bfloat16", weight=torch.zeros(size, size).bfloat16()), plain),
    )
    grouped = Routing(8, "sigmoid", scale=2.5, groups=8, top_groups=4)
    four = _mixture(_part("int4", codes=packed, scales=by_32, zeros=by_32.to(torch.uint8)), grouped)
    yield "moe-int4", "float16", True, "moe", {**four, "bias": torch.zeros(_EXPERTS)}
    yield "moe-int8-w8a8", "int8", False, "moe", _mixture(_part("int8", "int8_token", codes=int8, scales=whole), plain)
    block = _part("fp8_e4m3", "fp8_group128", codes=fp8, scales=whole)
    yield "moe-fp8-block", "fp8", False, "moe", _mixture(block, plain)


def _part(scheme: str, activation: str | None = None, **tensors: torch.Tensor) -> Weight:
    return Weight(scheme, (_SIZE, _SIZE), tensors, Weight.dequantize, activation=activation)


def _mixture(part: Weight, routing: Routing) -> dict[str, Any]:
    def stacked(count: int) -> Weight:
        parts = tuple(replace(part, prepared={}) for _ in range(count))
        return Weight("stack", (count * _SIZE, _SIZE), {}, Weight.dequantize, parts=parts)

    zeros = torch.zeros(_TOKENS, _EXPERTS, dtype=torch.bfloat16)
    given = {"x": torch.zeros(_TOKENS, _SIZE, dtype=torch.bfloat16), "router": zeros, "bias": None, "kind": "silu"}
    return {**given, "gate_up": stacked(2 * _EXPERTS), "down": stacked(_EXPERTS), "routing": routing}
