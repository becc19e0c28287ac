"""Inputs for `sample`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.kernels import random
from headrace.kernels.ops import Batch, SampleInputs
from headrace.sampling import DEVICE_ROWS

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    rows, vocab, width = int(rng.integers(0, 9)), int(rng.integers(2, 400)), 64
    batch = _batch(rows, device)
    logits = 3 * random.normal(rng, rows, vocab, device=device)
    inputs = _inputs(rng, rows, vocab, width, device)
    # Rows without a token: broken logits, and a mask that allows nothing.
    for row in np.flatnonzero(rng.random(rows) < 0.08):
        logits[row, int(rng.integers(0, vocab))] = float(rng.choice([np.nan, np.inf]))
    if rng.random() < 0.1:
        inputs.allowed[0] = 0
    return {"logits": logits, "inputs": inputs, "batch": batch, "num_logprobs": int(rng.integers(-1, min(vocab, 6)))}


def _batch(rows: int, device: torch.device) -> Batch:
    """A decode step: a token, a sequence and a row each."""
    one, index = torch.ones(rows, dtype=torch.int32), torch.arange(rows, dtype=torch.int32)
    sizes = torch.tensor([rows] * 3, dtype=torch.int32)
    start = torch.arange(rows + 1, dtype=torch.int32)
    tensors = [one, one, one, index, start, 2 * one, one.view(rows, 1), index, index]
    return Batch(sizes, *(tensor.to(device) for tensor in tensors))


def _inputs(rng: np.random.Generator, rows: int, vocab: int, width: int, device: torch.device) -> SampleInputs:
    def tensor(values: npt.ArrayLike, dtype: npt.DTypeLike) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values).astype(dtype)).to(device)

    position = rng.integers(1, width, rows)
    biases = int(rng.integers(0, 6))
    masks = rng.integers(-(2**31), 2**31, (2, -(-vocab // 32)))
    return SampleInputs(
        **{name: tensor(rng.choice(row.trials, rows), row.dtype) for name, row in DEVICE_ROWS.items()},
        seed=tensor(rng.integers(-(2**63), 2**63, rows), np.int64),
        position=tensor(position, np.int32),
        target=tensor(np.where(rng.random(rows) < 0.2, rng.integers(0, vocab, rows), -1), np.int32),
        slot=tensor(rng.permutation(rows), np.int32),
        prompt_len=tensor(rng.integers(1, position + 1) if rows else [], np.int32),
        bias_row=tensor(rng.integers(-1, rows, biases) if rows else [-1] * biases, np.int32),
        bias_token=tensor(rng.integers(0, vocab, biases), np.int32),
        bias_value=tensor(rng.choice([-np.inf, 2.0, -100.0], biases), np.float32),
        allowed=tensor(masks, np.int32),
        allowed_row=tensor(rng.choice([-1, -1, 0, 1], rows), np.int32),
        history=tensor(rng.integers(0, vocab, (rows + 1, width)), np.int32),
    )
