"""Inputs for `rms_norm`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    rows, columns = int(rng.integers(0, 40)), int(rng.integers(1, 1500))
    x = random.normal(rng, rows, columns, device=device, dtype=dtype)
    return {"x": x, "weight": random.normal(rng, columns, device=device), "eps": 1e-5}
