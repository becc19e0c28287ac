"""Inputs for `take_rows`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    batch = random.batch(rng, random.Shape.draw(rng), device)
    width = int(rng.integers(1, 300))
    return {"x": random.normal(rng, len(batch.token_ids), width, device=device, dtype=dtype), "batch": batch}
