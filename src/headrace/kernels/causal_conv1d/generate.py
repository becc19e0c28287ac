"""Inputs for `causal_conv1d`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    shape = random.Shape.draw(rng)
    channels, taps = int(rng.integers(1, 300)), int(rng.integers(2, 6))
    return {
        "x": random.normal(rng, sum(shape.fresh), channels, device=device, dtype=dtype),
        "weight": random.normal(rng, channels, taps, device=device),
        "bias": random.normal(rng, channels, device=device) if rng.integers(2) else None,
        "silu": bool(rng.integers(2)),
        "batch": random.batch(rng, shape, device),
        "state": random.normal(rng, len(shape.fresh) + 2, taps - 1, channels, device=device, dtype=dtype).float(),
    }
