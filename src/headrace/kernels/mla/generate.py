"""Inputs for `mla`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random
from headrace.types import LayerKV

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    shape = random.Shape.draw(rng)
    heads, rank, rope = int(rng.integers(1, 24)), int(rng.choice([16, 40, 64, 128])), int(rng.choice([8, 16, 20]))
    store = str(rng.choice([dtype, dtype, "int8"]))
    kv = random.cache(rng, shape, LayerKV(1, rank + rope), device, store)
    return {
        "q": random.normal(rng, sum(shape.fresh), heads * (rank + rope), device=device, dtype=dtype),
        "batch": random.batch(rng, shape, device),
        "latents": kv.keys[0][:, 0],
        "scales": kv.key_scales[0][:, 0] if kv.key_scales else None,
        "rank": rank,
        "scale": (rank + rope) ** -0.5,
    }
