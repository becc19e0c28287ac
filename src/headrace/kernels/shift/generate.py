"""Inputs for `shift`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels.ngram.generate import draw_step
from headrace.types import GIVEN, ON_DEVICE

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    """Some sequences are where they are assumed to be, some a token before."""
    step = draw_step(rng, device)
    first = step.batch.positions[step.batch.query_start[:-1].long()]
    bounds = torch.where(step.lengths == ON_DEVICE, first + 1, GIVEN).to(torch.int32)
    return {
        "batch": step.batch,
        "bounds": bounds,
        "position": step.position,
        "history": step.history,
        "size": step.block_size,
    }
