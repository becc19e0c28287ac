"""Inputs for `widen_logits`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    wide = int(rng.integers(1, 300))
    narrow = int(rng.integers(1, wide + 1))
    columns = np.full(wide, -1, np.int32)
    columns[np.sort(rng.permutation(wide)[:narrow])] = np.arange(narrow)
    logits = random.normal(rng, int(rng.integers(0, 5)), narrow, device=device, dtype=dtype).float()
    return {"logits": logits, "columns": torch.from_numpy(columns).to(device)}
