"""Inputs for `logits`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]


def generate(
    rng: np.random.Generator, device: torch.device, dtype: str, weights: random.Weights = random.PLAIN
) -> dict[str, Any]:
    batch = random.batch(rng, random.Shape.draw(rng), device)
    vocab, columns = (int(n) for n in rng.integers(1, 300, 2))
    vocab, columns = weights.rows(vocab), weights.columns(columns)
    x = random.normal(rng, len(batch.token_ids), columns, device=device, dtype=dtype)
    head = weights(rng, vocab, columns, device, dtype, bias=False)
    return {"x": x, "batch": batch, "head": head, "soft_cap": None if rng.integers(2) else 2.0}
