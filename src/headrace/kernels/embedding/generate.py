"""Inputs for `embedding`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]


def generate(
    rng: np.random.Generator, device: torch.device, dtype: str, weights: random.Weights = random.PLAIN
) -> dict[str, Any]:
    rows, columns = (int(n) for n in rng.integers(1, 200, 2))
    rows, columns = weights.rows(rows), weights.columns(columns)
    ids = rng.integers(0, rows, int(rng.integers(0, 40)), dtype=np.int32)
    table = weights(rng, rows, columns, device, dtype, bias=False)
    return {"ids": torch.from_numpy(ids).to(device), "table": table, "scale": float(rng.choice([1.0, columns**0.5]))}
