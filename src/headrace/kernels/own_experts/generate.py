"""Inputs for `own_experts`: those of `moe`, and one of up to four ranks' experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from headrace.kernels import random
from headrace.kernels.moe.generate import generate as mixture
from headrace.kernels.moe.routing import expert_range
from headrace.kernels.weight import Weight

__all__ = ["generate", "part_of"]


def generate(
    rng: np.random.Generator, device: torch.device, dtype: str, weights: random.Weights = random.PLAIN
) -> dict[str, Any]:
    given = mixture(rng, device, dtype, weights)
    ranks = int(rng.integers(1, min(given["router"].shape[1], 4) + 1))
    begin, end = expert_range(given["router"].shape[1], int(rng.integers(ranks)), ranks)
    own = {"gate_up": part_of(given["gate_up"], 2 * begin, 2 * end), "down": part_of(given["down"], begin, end)}
    return {**given, **own, "first": begin}


def part_of(stack: Weight, begin: int, end: int) -> Weight:
    """The matrices [begin, end) of a stack of equal ones, with their bias."""
    parts, rows = stack.parts[begin:end], stack.parts[0].shape[0]
    bias = None if stack.bias is None else stack.bias[begin * rows : end * rows]
    return replace(stack, shape=(len(parts) * rows, stack.shape[1]), bias=bias, parts=parts, prepared={})
