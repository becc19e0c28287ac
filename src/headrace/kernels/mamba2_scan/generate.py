"""Inputs for `mamba2_scan`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random
from headrace.kernels.recurrence import CHUNK

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    shape = random.Shape.draw(rng)
    groups, size, n = int(rng.integers(1, 3)), int(rng.choice([8, 16, 40, 64])), int(rng.choice([8, 16, 32, 40]))
    heads = groups * int(rng.integers(1, 3))
    tokens, slots = sum(shape.fresh), len(shape.fresh) + 2
    kept = heads * size + groups * n

    def normal(*sizes: int, dtype: str = "float32") -> torch.Tensor:
        return random.normal(rng, *sizes, device=device, dtype=dtype)

    pending = normal(slots, CHUNK, kept + heads, dtype=dtype).float()
    return {
        "xbc": normal(tokens, kept + groups * n, dtype=dtype),
        "dt": normal(tokens, heads, dtype=dtype),
        "a": -normal(heads).abs() * float(rng.choice([0.1, 1.0, 20.0])),
        "d": normal(heads) if rng.integers(2) else None,
        "dt_bias": normal(heads) if rng.integers(4) else None,
        "dt_limit": (0.0, float("inf")) if rng.integers(2) else (0.1, 1.5),
        "batch": random.batch(rng, shape, device),
        "state": normal(slots, heads, size, n),
        "pending": pending,
        "num_groups": groups,
    }
