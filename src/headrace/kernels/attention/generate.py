"""Inputs for `attention`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random
from headrace.types import LayerKV

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    shape = random.Shape.draw(rng)
    kv_heads, size = int(rng.integers(1, 4)), int(rng.choice(random.HEAD_SIZES))
    q_heads = kv_heads * int(rng.integers(1, 5))
    store = str(rng.choice([dtype, dtype, "int8", "float8_e4m3"]))
    return {
        "q": random.normal(rng, sum(shape.fresh), q_heads * size, device=device, dtype=dtype),
        "batch": random.batch(rng, shape, device),
        "kv": random.cache(rng, shape, LayerKV(kv_heads, size), device, store),
        "layer": 0,
        "scale": size**-0.5,
        "window": int(rng.integers(1, 100)) if rng.random() < 0.3 else None,
        "soft_cap": 5.0 if rng.random() < 0.3 else None,
        "sinks": random.normal(rng, q_heads, device=device) if rng.random() < 0.3 else None,
        "alibi": random.normal(rng, q_heads, device=device).abs() / 8 if rng.random() < 0.3 else None,
    }
