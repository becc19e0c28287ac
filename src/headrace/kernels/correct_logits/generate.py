"""Inputs for `correct_logits`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    blocks, drafts, vocab = int(rng.integers(0, 4)), int(rng.integers(1, 6)), int(rng.integers(1, 300))
    logits, corrections = (
        random.normal(rng, rows, vocab, device=device, dtype=dtype).float() for rows in (blocks * drafts, blocks)
    )
    return {"logits": logits, "corrections": corrections, "at": int(rng.integers(0, drafts)), "drafts": drafts}
