"""Inputs for `mix_experts`: the rows of ranks that don't hold a pair's expert are arbitrary."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random
from headrace.kernels.moe.generate import draw_routing

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    experts, routing = draw_routing(rng)
    ranks, tokens = int(rng.integers(1, min(experts, 4) + 1)), int(rng.choice((0, 1, int(rng.integers(2, 50)))))
    columns = ranks * int(rng.integers(1, 140))
    return {
        "outputs": random.normal(rng, tokens * routing.top_k, columns, device=device),
        "router": 2 * random.normal(rng, tokens, experts, device=device, dtype=dtype),
        "bias": random.normal(rng, experts, device=device) if rng.integers(2) else None,
        "routing": routing,
        "ranks": ranks,
    }
