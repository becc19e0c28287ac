"""The tensors of a Hugging Face directory: `model.safetensors`, or the shards of `model.safetensors.index.json`."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from headrace.checkpoints.files import located, present, read_json, regular_size
from headrace.checkpoints.safetensors_header import read_header
from headrace.errors import CheckpointError, UnsupportedModel, excerpt
from headrace.kernels.weight import Weight
from headrace.quant.online import FloatMatrix
from headrace.quant.scheme import Scheme
from headrace.quant.weights import dense
from headrace.settings import Settings

__all__ = ["SafetensorsSource", "open_safetensors"]

Tensor = torch.Tensor
_log = logging.getLogger(__name__)
_WHOLE = "model.safetensors"
_INDEX = f"{_WHOLE}.index.json"
_PREFIX = "model."
_FIRST = "embed_tokens.weight"
_BARE = ("embed_tokens.", "layers.", "norm.")
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_FLOAT_SIZES = {"F32": 4, "BF16": 2, "F16": 2}
_SIZES = {**_FLOAT_SIZES, "F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}


class SafetensorsSource:
    """A `models.assemble.Source` and a `quant.scheme.TensorReader`. Tensors are views of the files' maps."""

    def __init__(self, directory: Path, files: Mapping[str, Any], scheme: Scheme | None) -> None:
        """`files` maps a tensor's name to the opened file that holds it."""
        self._directory = directory
        self._files = files
        self._stored: Mapping[str, str] = {}
        """The names in the files, where they differ."""
        self._scheme = scheme
        self._used: set[str] = set()

    @property
    def names(self) -> Collection[str]:
        return self._files.keys()

    @property
    def used(self) -> Collection[str]:
        return self._used

    def complete_names(self) -> None:
        """Add the prefix `model.` to the names of a decoder that was stored alone, without its head."""
        if _FIRST in self._files:
            self._stored = {_PREFIX + name: name for name in self._files if name.startswith(_BARE)}
            known = {stored: name for name, stored in self._stored.items()}
            self._files = {known.get(name, name): file for name, file in self._files.items()}

    def has(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str) -> Tensor:
        """A tensor in its stored type. Raises CheckpointError if it is missing or damaged."""
        if name not in self._files:
            raise CheckpointError("is missing", str(self._directory), name)
        self._used.add(name)
        try:
            tensor: Tensor = self._files[name].get_tensor(self._stored.get(name, name))
        except SafetensorError as error:
            raise self.error(str(error), name) from error
        return tensor

    def float_matrices(self) -> Iterator[FloatMatrix]:
        """The matrices that are not quantized, from the headers."""
        for name, file in self._files.items():
            found = file.get_slice(self._stored.get(name, name))
            shape, size = found.get_shape(), _FLOAT_SIZES.get(found.get_dtype())
            if len(shape) > 1 and size is not None:
                yield FloatMatrix(name, math.prod(shape[:-1]), shape[-1], size)

    def stored_sizes(self) -> Iterator[tuple[str, int]]:
        """(name, bytes) of every tensor, from the headers. The size of a type that is not known counts as a byte."""
        for name, file in self._files.items():
            found = file.get_slice(self._stored.get(name, name))
            yield name, math.prod(found.get_shape()) * _SIZES.get(found.get_dtype(), 1)

    def error(self, message: str, name: str) -> CheckpointError:
        return CheckpointError(message, str(self._directory), name)

    def matrix(self, name: str, rows: int, columns: int, bias: bool) -> Weight:
        scheme = self._scheme
        if scheme is not None and scheme.covers(name, self):
            with located(self._directory):
                weight = scheme.load(name, (rows, columns), self)
        else:
            weight = dense(self._floats(f"{name}.weight", (rows, columns)), f"{name}.weight")
        if bias:
            weight.bias = self.vector(f"{name}.bias", rows)
        return weight

    def experts(self, name: str, count: int, rows: int, columns: int) -> list[Weight]:
        return [self.matrix(name.format(e=expert), rows, columns, bias=False) for expert in range(count)]

    def vector(self, name: str, size: int) -> Tensor:
        return self._floats(name, (size,)).float()

    def _floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self.get(name)
        if tensor.dim() == 1 and shape == (1, len(tensor)):
            tensor = tensor[None]  # Some writers squeeze a matrix of one row.
        if tuple(tensor.shape) != shape:
            raise self.error(f"has shape {list(tensor.shape)}: expected {list(shape)}", name)
        if tensor.dtype not in _FLOATS:
            raise self.error(f"has type {tensor.dtype}: expected float32, bfloat16 or float16", name)
        return tensor


def open_safetensors(directory: Path, scheme: Scheme | None) -> SafetensorsSource:
    """Open all shards. Raises CheckpointError that names the file, and the tensor if a file is truncated."""
    index, single = directory / _INDEX, directory / _WHOLE
    placed = _read_index(index) if present(index) else None
    if placed is not None and present(single) and _is_stale(placed, directory):
        _log.warning("%s names shards that are not there: the whole %s beside it is read instead", index, _WHOLE)
        placed = None
    if placed is not None:
        opened = {name: _open(directory / name) for name in sorted(set(placed.values()))}
        held = {name: set(handle.keys()) for name, handle in opened.items()}
        for tensor, file in placed.items():
            if tensor not in held[file]:
                raise CheckpointError("is not in the file that the index names", str(directory / file), tensor)
        return SafetensorsSource(directory, {tensor: opened[file] for tensor, file in placed.items()}, scheme)
    if not present(single):
        raise UnsupportedModel(f"{directory}: no {_WHOLE} and no index of shards; other formats are not read")
    handle = _open(single)
    return SafetensorsSource(directory, dict.fromkeys(handle.keys(), handle), scheme)


def _is_stale(placed: Mapping[str, str], directory: Path) -> bool:
    """Whether a shard is missing: a tool that joined the shards left the index."""
    return not all((directory / file).exists() for file in set(placed.values()))


def _read_index(path: Path) -> dict[str, str]:
    with located(path):
        weight_map = Settings(read_json(path)).section("weight_map")
        placed = {} if weight_map is None else {name: weight_map.text(name) for name in weight_map.names()}
    if not placed:
        raise CheckpointError("field 'weight_map' is missing", str(path))
    for file in set(placed.values()):
        if file in ("", ".", "..") or "\0" in file or Path(file).name != file:
            raise CheckpointError(f"field 'weight_map' names {excerpt(file)}: expected a file beside it", str(path))
    return placed


def _open(path: Path) -> Any:
    regular_size(path)
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"not a sound safetensors file: {error}", str(path), _first_cut(path)) from error


def _first_cut(path: Path) -> str | None:
    """The first tensor, by offset, that a truncated file no longer holds completely; None if the header is
    unreadable."""
    size = path.stat().st_size
    try:
        length, header = read_header(path)
        ends = sorted((entry["data_offsets"][1], name) for name, entry in header.items())
        return next((name for end, name in ends if 8 + length + end > size), None)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return None
