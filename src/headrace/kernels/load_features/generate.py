"""Inputs for `load_features`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.kernels.store_features.generate import generate as stored

__all__ = ["generate"]


def generate(rng: np.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]:
    arguments = stored(rng, device, dtype)
    width = arguments.pop("x").shape[1]
    return {**arguments, "width": width}
