"""Inputs for `ngram`, and steps with rows that the device places."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from headrace.kernels.ops import Batch
from headrace.types import GIVEN, NO_TOKEN, ON_DEVICE

__all__ = ["PlacedStep", "draw_step", "generate", "widened"]


class PlacedStep(NamedTuple):
    """A step of sequences whose positions are given and of others that the device places."""

    batch: Batch
    lengths: torch.Tensor
    history: torch.Tensor
    most: int
    block_size: int
    position: torch.Tensor


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    step = draw_step(rng, device)
    return {"batch": step.batch, "lengths": step.lengths, "history": step.history, "most": step.most}


def widened(rng: np.random.Generator, drafts: torch.Tensor) -> torch.Tensor:
    """Drafts as several ranks gather them, or as they are: those of other ranks are in further columns."""
    others = rng.integers(-1, 40, (len(drafts), int(rng.integers(0, 3)) * drafts.shape[1])).astype(np.int32)
    return torch.cat([drafts, torch.from_numpy(others).to(drafts.device)], 1)


def draw_step(rng: np.random.Generator, device: torch.device) -> PlacedStep:
    """A random step. Few different tokens, so that many matches exist; a length may be that of a whole history."""
    count, most, size = int(rng.integers(0, 6)), int(rng.integers(1, 9)), int(rng.choice([16, 32]))
    width = int(rng.integers(most + 4, 150))
    history = rng.integers(0, int(rng.choice([2, 4, 40])), (count + 2, width + 1)).astype(np.int32)
    slots = rng.permutation(count + 2)[:count]
    known = rng.integers(1, width - most, count)
    fresh = rng.integers(1, most + 2, count)
    given = rng.random(count) < 0.3
    starts = np.cumsum([0, *fresh])
    total = int(starts[-1])
    seq = np.repeat(np.arange(count), fresh)
    nth = np.arange(total) - starts[seq]
    # The upper bounds that the host knows, which the device replaces; positions that are given are right.
    positions = known[seq] - 1 + nth + np.where(given[seq], 0, rng.integers(0, 2, count)[seq])
    blocks = -(-(width + most + 2) // size)
    tables = rng.permutation(np.arange(1, 1 + count * blocks)).reshape(count, blocks)
    rows = np.flatnonzero(~given[seq] | (nth == fresh[seq] - 1)) if total else np.zeros(0)
    history[slots, -1] = known
    on_device = rng.random(count) < 0.6
    history[slots[~on_device], -1] = 1

    def ints(values: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int32)).to(device)

    batch = Batch(
        sizes=torch.tensor([total, count, len(rows)], dtype=torch.int32),
        token_ids=ints(np.full(total, NO_TOKEN)),
        positions=ints(positions),
        slot_mapping=ints(tables[seq, positions // size] * size + positions % size if total else []),
        token_seq=ints(seq),
        query_start=ints(starts),
        context_lens=ints(known + fresh),
        block_tables=ints(tables),
        slots=ints(slots),
        rows=ints(rows),
    )
    lengths = np.where(given, GIVEN, np.where(on_device, ON_DEVICE, known))
    sampled = positions[rows.astype(np.intp)] + 1 if total else []
    return PlacedStep(batch, ints(lengths), ints(history), most, size, ints(sampled))
