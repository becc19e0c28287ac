"""Inputs for `accept`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels.ngram.generate import draw_step, widened
from headrace.kernels.ngram.reference import ngram
from headrace.types import NO_TOKEN

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    """Of the drafts most are what was sampled; a row may have no token, and a place within the drafts none."""
    step = draw_step(rng, device)
    drafts = ngram(step.batch, step.lengths, step.history, step.most)
    drafts[torch.from_numpy(rng.random(drafts.shape) < 0.15).to(device)] = NO_TOKEN
    seq, rows = step.batch.token_seq.long(), step.batch.rows.long()
    nth = rows - step.batch.query_start.long()[seq[rows]]
    tokens = drafts[seq[rows], nth.clamp(max=step.most - 1)] if len(rows) else rows
    wrong = torch.from_numpy(rng.random(len(rows)) < 0.15).to(device)
    return {
        "batch": step.batch,
        "lengths": step.lengths,
        "drafts": widened(rng, drafts),
        "tokens": torch.where(wrong, -3, tokens).to(torch.int32),
        "history": step.history,
    }
