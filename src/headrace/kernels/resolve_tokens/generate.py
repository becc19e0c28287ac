"""Inputs for `resolve_tokens`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    shape = random.Shape.draw(rng)
    width = shape.blocks * shape.block_size
    history = torch.from_numpy(rng.integers(0, 100, (len(shape.fresh) + 2, width), dtype=np.int32)).to(device)
    return {"batch": random.batch(rng, shape, device), "history": history}
