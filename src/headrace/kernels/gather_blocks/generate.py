"""Inputs for `gather_blocks`."""

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
    kept = str(rng.choice([dtype, "float32", "int8", "float8_e4m3"]))
    kv = random.cache(rng, shape, layer, device, kept)
    ids = rng.permutation(len(kv.keys[0]))[: int(rng.integers(1, len(kv.keys[0]) + 1))]
    return {"kv": kv, "ids": torch.from_numpy(ids.astype(np.int32)).to(device)}
