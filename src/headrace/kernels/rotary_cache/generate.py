"""Inputs for `rotary_cache`."""

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
    q_heads = kv_heads * int(rng.integers(0, 5))  # 0: a drafter's entries have no queries
    rotary = size if rng.integers(2) else size // 2
    angles = rng.uniform(0, 6.28, (shape.blocks * shape.block_size, rotary // 2))
    table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    normed = bool(rng.integers(2))
    store = str(rng.choice([dtype, "int8", "float8_e4m3"]))
    return {
        "qkv": random.normal(rng, sum(shape.fresh), (q_heads + 2 * kv_heads) * size, device=device, dtype=dtype),
        "batch": random.batch(rng, shape, device),
        "kv": random.cache(rng, shape, LayerKV(kv_heads, size), device, store),
        "layer": 0,
        "cos_sin": torch.from_numpy(table).to(device),
        "num_q_heads": q_heads,
        "q_norm": random.normal(rng, size, device=device) if normed else None,
        "k_norm": random.normal(rng, size, device=device) if normed else None,
        "eps": 1e-6,
    }
