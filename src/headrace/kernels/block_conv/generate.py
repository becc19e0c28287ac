"""Inputs for `block_conv`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    rows, blocks = int(rng.integers(1, 10)), int(rng.integers(0, 5))
    taps, group, groups = int(rng.integers(1, 4)), int(rng.choice([1, 3, 16])), int(rng.integers(1, 9))
    tokens, hidden = rows * blocks, group * groups
    return {
        "x": random.normal(rng, tokens, hidden, device=device, dtype=dtype),
        "kernel": random.normal(rng, tokens, 2 * taps * groups, device=device, dtype=dtype),
        "base": random.normal(rng, taps, hidden, device=device),
        "side": int(rng.integers(2)),
        "rows": rows,
    }
