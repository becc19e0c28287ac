"""Inputs for `place`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels.ngram.generate import draw_step, widened
from headrace.kernels.ngram.reference import ngram

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    step = draw_step(rng, device)
    return {
        "batch": step.batch,
        "lengths": step.lengths,
        "drafts": widened(rng, ngram(step.batch, step.lengths, step.history, step.most)),
        "position": step.position,
        "history": step.history,
        "size": step.block_size,
    }
