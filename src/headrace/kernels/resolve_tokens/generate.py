"""Inputs for `resolve_tokens`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    shape = random.Shape.draw(rng)
    width = shape.blocks * shape.block_size
    history = torch.from_numpy(rng.integers(0, 100, (len(shape.fresh) + 2, width), dtype=np.int32)).to(device)
    batch = random.batch(rng, shape, device)
    masked = torch.from_numpy(rng.random(len(batch.token_ids)) < 0.1).to(device)
    return {"batch": replace(batch, token_ids=torch.where(masked, -4, batch.token_ids)), "history": history}
