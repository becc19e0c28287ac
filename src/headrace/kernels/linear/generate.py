"""Inputs for `linear`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]


def generate(
    rng: np.random.Generator, device: torch.device, dtype: str, weights: random.Weights = random.PLAIN
) -> dict[str, Any]:
    rows, columns = (int(rng.integers(1, 20)) * 16 if rng.integers(2) else int(rng.integers(1, 300)) for _ in range(2))
    rows, columns = weights.rows(rows), weights.columns(columns)
    tokens = int(rng.choice((0, 1, int(rng.integers(2, 20)), int(rng.integers(20, 80)))))
    x = random.normal(rng, tokens, columns, device=device, dtype=dtype)
    return {"x": x, "weight": weights(rng, rows, columns, device, dtype, bias=bool(rng.integers(2)))}
