"""Inputs for `add_rms_norm`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels import random
from headrace.kernels.rms_norm import generate as rms_norm

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    inputs = rms_norm.generate(rng, device, dtype)
    return inputs | {"residual": random.normal(rng, *inputs["x"].shape, device=device, dtype=dtype)}
