"""Inputs for `resolve_tokens`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]

_NEGATIVE = np.array([-1, -2, -3, -(2**31)], np.int32)


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    shape = random.Shape.draw(rng)
    width = shape.blocks * shape.block_size
    history = torch.from_numpy(rng.integers(0, 100, (len(shape.fresh) + 2, width), dtype=np.int32)).to(device)
    batch = random.batch(rng, shape, device)
    # Every negative id is looked up, NO_TOKEN or another.
    lower = torch.from_numpy(rng.choice(_NEGATIVE, len(batch.token_ids))).to(device)
    batch = replace(batch, token_ids=torch.where(batch.token_ids < 0, lower, batch.token_ids))
    return {"batch": batch, "history": history}
