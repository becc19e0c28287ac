"""What a quantised Hugging Face checkpoint offers to the loader: which modules it covers and how one is read."""

from __future__ import annotations

from typing import Protocol

import torch

from headrace.errors import CheckpointError
from headrace.kernels.weight import Weight

__all__ = ["WHERE", "Reader", "Scheme"]

WHERE = "quantization_config"
"""Where a scheme's settings stand in a config.json."""


class Reader(Protocol):
    """Tensors of a checkpoint by name."""

    def has(self, name: str) -> bool: ...

    def get(self, name: str) -> torch.Tensor:
        """In its own type, a view of the file. Raises CheckpointError where it is missing."""

    def error(self, message: str, name: str) -> CheckpointError: ...


class Scheme(Protocol):
    """One `quantization_config`, read."""

    def covers(self, module: str, reader: Reader) -> bool:
        """False: the module's weight is stored as plain floats."""

    def load(self, module: str, shape: tuple[int, int], reader: Reader) -> Weight:
        """The [N, K] weight of a module, without its bias. Raises CheckpointError for a wrong shape or type."""
