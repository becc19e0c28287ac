"""Inputs for `gated_linear`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    width = int(rng.integers(1, 10)) * 16 if rng.integers(2) else int(rng.integers(1, 150))
    columns = int(rng.integers(1, 300))
    tokens = int(rng.choice((0, 1, int(rng.integers(2, 20)), int(rng.integers(20, 80)))))
    x = random.normal(rng, tokens, columns, device=device, dtype=dtype)
    weight = random.weight(rng, 2 * width, columns, device, dtype, bias=bool(rng.integers(2)))
    return {"x": x, "weight": weight, "kind": str(rng.choice(["silu", "gelu", "gelu_tanh"]))}
