"""Inputs for `named_logprobs`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random
from headrace.kernels.sample.scores import scores

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    """A row may name no token, and one token several times."""
    rows, vocab, width = int(rng.integers(0, 6)), int(rng.integers(2, 400)), int(rng.integers(1, 40))
    logits = 3 * random.normal(rng, rows, vocab, device=device)
    top = scores(logits, torch.zeros(rows, dtype=torch.int32, device=device), 1)[3] if rows else logits[:, :1]
    named = torch.from_numpy(rng.integers(-1, vocab, (rows, width)).astype(np.int32)).to(device)
    return {"logits": logits, "named": named, "top_logprobs": top}
