"""Inputs for `gated_activation`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    rows, columns = int(rng.integers(0, 40)), int(rng.integers(1, 700))
    x = 3 * random.normal(rng, rows, 2 * columns, device=device, dtype=dtype)
    return {"x": x, "kind": str(rng.choice(["silu", "gelu", "gelu_tanh"]))}
