"""Inputs for `gated_delta_rule`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random
from headrace.kernels.recurrence import CHUNK

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    shape = random.Shape.draw(rng)
    k_heads, dk, dv = int(rng.integers(1, 3)), int(rng.choice([8, 16, 32, 40])), int(rng.choice([8, 16, 40, 64]))
    heads = k_heads * int(rng.integers(1, 3))
    tokens, slots = sum(shape.fresh), len(shape.fresh) + 2
    kept = k_heads * dk + heads * dv

    def normal(*sizes: int, dtype: str = "float32") -> torch.Tensor:
        return random.normal(rng, *sizes, device=device, dtype=dtype)

    pending = normal(slots, CHUNK, kept, dtype=dtype).float()
    gates = [-normal(slots, CHUNK, heads).abs(), normal(slots, CHUNK, heads).sigmoid()]
    return {
        "qkv": normal(tokens, k_heads * dk + kept, dtype=dtype),
        "decay": -normal(tokens, heads).abs() * float(rng.choice([0.1, 1.0, 20.0])),
        "strength": normal(tokens, heads).sigmoid(),
        "batch": random.batch(rng, shape, device),
        "state": normal(slots, heads, dk, dv),
        "pending": torch.cat([pending, *gates], 2),
        "num_k_heads": k_heads,
        "scale": dk**-0.5,
        "normalise": True,
    }
