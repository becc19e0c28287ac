"""Inputs for `store_features`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random
from headrace.types import LayerKV

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    shape = random.Shape.draw(rng)
    layer = LayerKV(int(rng.integers(1, 4)), int(rng.choice(random.HEAD_SIZES)))
    most = 2 * layer.num_kv_heads * layer.head_dim
    width = int(rng.integers(1, most + 1))
    batch = random.batch(rng, shape, device)
    kept = str(rng.choice([dtype, "float32", "int8", "float8_e4m3"]))
    return {
        "x": random.normal(rng, len(batch.token_ids), width, device=device, dtype=dtype),
        "batch": batch,
        "kv": random.cache(rng, shape, layer, device, kept),
        "layer": 0,
    }
