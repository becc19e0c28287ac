"""Inputs for `scatter_blocks`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels.gather_blocks.generate import generate as blocks
from headrace.kernels.gather_blocks.reference import gather_blocks

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    arguments = blocks(rng, device, dtype)
    packed = gather_blocks(**arguments)
    return {**arguments, "packed": packed[torch.from_numpy(rng.permutation(len(packed))).to(device)]}
