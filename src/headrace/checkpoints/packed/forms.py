"""What a device brings so that its packed weights can be kept: `Device.extension("packed_forms")`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from headrace.kernels.weight import Weight

__all__ = ["PackedForms"]


@runtime_checkable
class PackedForms(Protocol):
    """A device's own forms of weights, as plain headers and buffers. Called by one thread at a time."""

    @property
    def identity(self) -> str:
        """Everything but the checkpoint that the forms depend on: the layout's version, instruction set, arithmetic."""

    def dump(self, weight: Weight) -> tuple[dict[str, Any], list[torch.Tensor]] | None:
        """A header for JSON and contiguous buffers of all that the device has prepared of this weight; None where that is
        nothing, or more than this can tell."""

    def load(self, weight: Weight, header: dict[str, Any], buffers: Sequence[torch.Tensor]) -> None:
        """Put what `dump` gave into `weight.prepared`. Buffers are aligned to 64 bytes, and may be kept."""

    def take(self, size: int) -> torch.Tensor:
        """Memory for all buffers of a file, where the device likes to read it: uint8 [size] on the host, aligned to 64 bytes."""
