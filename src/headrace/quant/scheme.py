"""The interface of a quantized Hugging Face checkpoint to the loader: the modules it covers and how one is read."""

from __future__ import annotations

from typing import Protocol

import torch

from headrace.errors import CheckpointError
from headrace.kernels.weight import Weight

__all__ = ["CONFIG_KEY", "Scheme", "TensorReader"]

CONFIG_KEY = "quantization_config"
"""The field of config.json that holds a scheme's settings."""


class TensorReader(Protocol):
    """Tensors of a checkpoint by name."""

    def has(self, name: str) -> bool: ...

    def get(self, name: str) -> torch.Tensor:
        """The tensor in its stored type, a view of the file. Raises CheckpointError if it is missing."""

    def error(self, message: str, name: str) -> CheckpointError: ...


class Scheme(Protocol):
    """One parsed `quantization_config`."""

    def covers(self, module: str, reader: TensorReader) -> bool:
        """Whether the module's weight is quantized. False: it is stored as plain floats."""

    def load(self, module: str, shape: tuple[int, int], reader: TensorReader) -> Weight:
        """The [N, K] weight of a module, without its bias. Raises CheckpointError for a wrong shape or type."""
