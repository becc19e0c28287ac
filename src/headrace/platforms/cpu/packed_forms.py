"""Saves and loads packed weights of this device, for the engine's cache (`interface.PackedForms`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from headrace.kernels import codebooks
from headrace.kernels.linear import cpu_pack, cpu_pack_panels, cpu_pack_schemes
from headrace.kernels.linear.cpu_pack import Compute, PackedWeight
from headrace.kernels.linear.cpu_pack_panels import LAYOUT_VERSION
from headrace.kernels.weight import Weight
from headrace.platforms.cpu.weight_arena import WeightArena

__all__ = ["CpuPackedForms"]

_SOURCES = (codebooks, cpu_pack, cpu_pack_panels, cpu_pack_schemes)


class CpuPackedForms:
    """Packed weights as plain data. `key`: their key in `Weight.prepared`."""

    def __init__(self, key: str, compute: Compute, isa: str) -> None:
        self._key = key
        self.identity = f"cpu {compute} {isa} layout {LAYOUT_VERSION} {_code()}"

    def dump(self, weight: Weight) -> tuple[dict[str, Any], list[torch.Tensor]] | None:
        packed = weight.prepared.get(self._key)
        if not isinstance(packed, PackedWeight) or len(weight.prepared) != 1:
            return None
        return packed.dump()

    def load(self, weight: Weight, header: dict[str, Any], buffers: Sequence[torch.Tensor]) -> None:
        weight.prepared[self._key] = PackedWeight.load(header, buffers)

    def take(self, size: int) -> torch.Tensor:
        """Memory on huge pages into which the file is read. Mapping the file would give small pages, and a decode step,
        which reads every weight once, would wait for page tables."""
        return WeightArena(0).take(size)


def _code() -> str:
    """A hash of the code that packs, so that kernels never read another layout, even if its version was not changed."""
    digest = hashlib.sha256()
    for module in _SOURCES:
        assert module.__file__ is not None
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()[:8]
