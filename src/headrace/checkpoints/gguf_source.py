"""Tensors of a memory-mapped GGUF file, as views of the map."""

from __future__ import annotations

import math
import mmap
from collections.abc import Collection, Iterator
from pathlib import Path

import torch

from headrace.checkpoints.gguf_header import GGUFHeader, TensorEntry, map_gguf
from headrace.errors import CheckpointError
from headrace.kernels.weight import Weight
from headrace.quant.gguf import FLOAT_TYPES, GGUF_TYPES, gguf_weight
from headrace.quant.online import FloatMatrix
from headrace.quant.weights import dense

__all__ = ["GGUFSource", "open_gguf"]

Tensor = torch.Tensor


class GGUFSource:
    """A `models.assemble.Source`. The map lives as long as one of its tensors."""

    def __init__(self, path: str, data: mmap.mmap, header: GGUFHeader) -> None:
        self.path = path
        self.header = header
        self._data = data
        self._used: set[str] = set()

    @property
    def names(self) -> Collection[str]:
        return self.header.tensors.keys()

    @property
    def used(self) -> Collection[str]:
        return self._used

    def matrices(self) -> Iterator[tuple[str, str, int]]:
        """(name, scheme, columns) of every matrix, from the list of tensors, as it is stored."""
        for entry in self.header.tensors.values():
            if len(entry.shape) > 1:
                kind = FLOAT_TYPES.get(entry.type)
                scheme = f"gguf:{GGUF_TYPES[entry.type].name}" if kind is None else str(kind).removeprefix("torch.")
                yield entry.name, scheme, entry.shape[-1]

    def float_matrices(self) -> Iterator[FloatMatrix]:
        """The matrices that are not quantized, from the list of tensors."""
        for entry in self.header.tensors.values():
            if len(entry.shape) > 1 and entry.type in FLOAT_TYPES:
                rows = math.prod(entry.shape[:-1])
                yield FloatMatrix(entry.name, rows, entry.shape[-1], entry.size // (rows * entry.shape[-1]))

    def stored_sizes(self) -> Iterator[tuple[str, int]]:
        """(name, bytes) of every tensor."""
        return ((entry.name, entry.size) for entry in self.header.tensors.values())

    def matrix(self, name: str, rows: int, columns: int, bias: bool) -> Weight:
        entry = self._entry(f"{name}.weight", (rows, columns))
        weight = self._rows(entry, rows, columns)
        if bias:
            weight.bias = self.vector(f"{name}.bias", rows)
        return weight

    def experts(self, name: str, count: int, rows: int, columns: int) -> list[Weight]:
        whole = self._rows(self._entry(f"{name}.weight", (count, rows, columns)), count * rows, columns)
        return [whole.take(slice(expert * rows, (expert + 1) * rows)) for expert in range(count)]

    def _rows(self, entry: TensorEntry, rows: int, columns: int) -> Weight:
        raw = torch.frombuffer(self._data, dtype=torch.uint8, count=entry.size, offset=entry.start)
        if entry.type in FLOAT_TYPES:
            return dense(raw.view(FLOAT_TYPES[entry.type]).view(rows, columns), entry.name)
        return gguf_weight(GGUF_TYPES[entry.type], raw.view(rows, -1), columns, entry.name)

    def vector(self, name: str, size: int) -> Tensor:
        entry = self._entry(name, (size,))
        if entry.type not in FLOAT_TYPES:
            raise CheckpointError(f"a vector of GGUF type {entry.type}: expected floats", self.path, name)
        raw = torch.frombuffer(self._data, dtype=torch.uint8, count=entry.size, offset=entry.start)
        return raw.view(FLOAT_TYPES[entry.type]).float()

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Check that the tensor exists. Raises CheckpointError."""
        self._find(name, shape)

    def _entry(self, name: str, shape: tuple[int, ...]) -> TensorEntry:
        self._used.add(name)
        return self._find(name, shape)

    def _find(self, name: str, shape: tuple[int, ...]) -> TensorEntry:
        entry = self.header.tensors.get(name)
        if entry is None:
            raise CheckpointError("is missing", self.path, name)
        # Some writers squeeze a matrix of one row, some do not.
        if _squeezed(entry.shape) != _squeezed(shape):
            raise CheckpointError(f"has shape {list(entry.shape)}: expected {list(shape)}", self.path, name)
        return entry


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without leading dimensions of one."""
    first = next((at for at, length in enumerate(shape) if length != 1), len(shape) - 1)
    return shape[first:]


def open_gguf(path: Path) -> GGUFSource:
    """Open a GGUF file. Raises ModelNotFound or CheckpointError."""
    return GGUFSource(str(path), *map_gguf(path))
