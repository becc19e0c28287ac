"""Inputs for `moe`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random
from headrace.kernels.moe.routing import Routing
from headrace.kernels.weight import Weight

__all__ = ["draw_routing", "generate"]


def draw_routing(rng: np.random.Generator) -> tuple[int, Routing]:
    """(number of experts, random routing among them)."""
    groups, run = int(rng.choice([1, 1, 2, 4])), int(rng.integers(2, 9))
    top_groups = int(rng.integers(1, groups + 1))
    return groups * run, Routing(
        top_k=int(rng.integers(1, min(top_groups * run, 9) + 1)),
        score="softmax" if rng.integers(2) else "sigmoid",
        renormalize=bool(rng.integers(2)),
        scale=float(rng.choice([1.0, 2.5])),
        groups=groups,
        top_groups=top_groups,
        group_best=int(rng.integers(1, 3)),
    )


def generate(
    rng: np.random.Generator, device: torch.device, dtype: str, weights: random.Weights = random.PLAIN
) -> dict[str, Any]:
    """Inputs in which experts without a token are common: few tokens, many experts."""
    experts, routing = draw_routing(rng)
    hidden, width = (int(rng.integers(1, 9)) * 16 if rng.integers(2) else int(rng.integers(1, 140)) for _ in range(2))
    hidden, width = weights.columns(weights.rows(hidden)), weights.columns(weights.rows(width))
    tokens = int(rng.choice((0, 1, int(rng.integers(2, 8)), int(rng.integers(8, 50)))))
    biased = bool(rng.integers(2))
    return {
        "x": random.normal(rng, tokens, hidden, device=device, dtype=dtype),
        "router": 2 * random.normal(rng, tokens, experts, device=device, dtype=dtype),
        "gate_up": _stack(rng, weights, (2 * experts, width, hidden), device, dtype),
        "down": _stack(rng, weights, (experts, hidden, width), device, dtype),
        "bias": random.normal(rng, experts, device=device) if biased else None,
        "routing": routing,
        "kind": str(rng.choice(["silu", "gelu", "gelu_tanh"])),
    }


def _stack(
    rng: np.random.Generator, weights: random.Weights, sizes: tuple[int, int, int], device: torch.device, dtype: str
) -> Weight:
    """A random stack; `sizes` are the number of matrices, and the rows and columns of each."""
    count, rows, columns = sizes
    parts = tuple(weights(rng, rows, columns, device, dtype, bias=False) for _ in range(count))
    bias = random.normal(rng, count * rows, device=device) if rng.integers(3) == 0 else None
    return Weight("stack", (count * rows, columns), {}, Weight.dequantize, bias, parts=parts)
