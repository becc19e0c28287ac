"""Reads the header of an untrusted GGUF file (format: ggml's `docs/gguf.md`, versions 2 and 3).

Every number of the file is checked against the file's length before it is used, so that a forged one costs neither
memory nor time: the error names the field.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from headrace.checkpoints.files import regular_size
from headrace.errors import CheckpointError, ModelNotFound, excerpt
from headrace.quant.gguf_types import BLOCK_SIZES, FLOAT_BYTES, TYPE_NAMES

__all__ = ["GGUFHeader", "Strings", "TensorEntry", "map_gguf", "parse_header"]

_MAX_DIMENSIONS = 4
_SUPPORTED = ", ".join(["F32", "F16", "BF16", *(name.upper() for name, *_ in BLOCK_SIZES.values())])
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """The place of a tensor. `shape` is in torch's order, rows first."""

    name: str
    shape: tuple[int, ...]
    type: int
    start: int
    """Byte offset in the file."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    metadata: dict[str, Any]
    """Numbers, booleans, strings, numpy arrays of numbers, and `Strings`."""
    tensors: dict[str, TensorEntry]


class Strings(Sequence[str]):
    """The strings of a vocabulary, decoded at the first access, because an engine often needs only their number."""

    def __init__(self, data: memoryview, ends: Sequence[int]) -> None:
        """`ends`: the offsets in `data` at which each string ends; the next one begins eight bytes later."""
        self._data, self._ends = data, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.decoded[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.decoded)

    @cached_property
    def decoded(self) -> list[str]:
        start, found = 8, []
        for end in self._ends:
            found.append(str(self._data[start:end], "utf-8", "replace"))
            start = end + 8
        return found


class _Reader:
    """A cursor that cannot read past the end of the file."""

    def __init__(self, data: memoryview, path: str) -> None:
        self.data = data
        self.path = path
        self.at = 0

    def fail(self, message: str, tensor: str | None = None) -> CheckpointError:
        return CheckpointError(message, self.path, tensor)

    def need(self, count: int, field: str) -> None:
        left = len(self.data) - self.at
        if count > left:
            raise self.fail(f"{field} needs {count} bytes at offset {self.at}, but the file has {left} more")

    def take(self, count: int, field: str) -> memoryview:
        self.need(count, field)
        piece = self.data[self.at : self.at + count]
        self.at += count
        return piece

    def u32(self, field: str) -> int:
        return int.from_bytes(self.take(4, field), "little")

    def u64(self, field: str) -> int:
        return int.from_bytes(self.take(8, field), "little")

    def string(self, field: str) -> str:
        length = self.u64(f"the length of {field}")
        return bytes(self.take(length, field)).decode("utf-8", errors="replace")

    def strings(self, count: int, field: str) -> Strings:
        """Read many strings. A start waits for this loop."""
        data, at, end = self.data, self.at, len(self.data)
        length_at = struct.Struct("<Q").unpack_from
        ends = []
        try:
            for _ in range(count):
                at += 8 + length_at(data, at)[0]
                ends.append(at)
        except (struct.error, OverflowError):
            at = end + 1
        if at > end:
            self.at = max(stop for stop in (self.at, *ends) if stop <= end)
            self.string(field)  # fails, and says where
        first, self.at = self.at, at
        return Strings(data[first:at], [stop - first for stop in ends])

    def value(self, field: str) -> Any:
        kind = self.u32(f"the type of {field}")
        if kind == _STRING:
            return self.string(field)
        if kind == _ARRAY:
            return self.array(field)
        dtype = self.dtype(kind, field)
        return np.frombuffer(self.take(dtype.itemsize, field), dtype)[0].item()

    def array(self, field: str) -> Any:
        kind, length = self.u32(f"the element type of {field}"), self.u64(f"the length of {field}")
        if kind == _STRING:
            self.need(length * 8, field)
            return self.strings(length, field)
        dtype = self.dtype(kind, field)
        return np.frombuffer(self.take(length * dtype.itemsize, field), dtype).copy()

    def dtype(self, kind: int, field: str) -> np.dtype[Any]:
        if kind not in _SCALARS:
            raise self.fail(f"{field} has type {kind}, which GGUF does not define or nests arrays")
        return np.dtype(_SCALARS[kind])


def parse_header(data: memoryview, path: str) -> GGUFHeader:
    """Parse a header. Raises CheckpointError, one line with the file and the field, for invalid data."""
    reader = _Reader(data, path)
    if bytes(reader.take(4, "the magic number")) != b"GGUF":
        raise reader.fail("not a GGUF file: it does not begin with 'GGUF'")
    version = reader.u32("the version")
    if version not in (2, 3):
        raise reader.fail(f"GGUF version {version:#x} is not supported (2 and 3, little-endian, are)")
    tensor_count, pair_count = reader.u64("the tensor count"), reader.u64("the metadata count")
    reader.need(pair_count * 13, f"the metadata count {pair_count}")
    metadata: dict[str, Any] = {}
    for index in range(pair_count):
        key = reader.string(f"metadata key {index}")
        if key in metadata:
            raise reader.fail(f"metadata key {key[:80]!r} occurs twice")
        metadata[key] = reader.value(f"metadata {key[:80]!r}")
    reader.need(tensor_count * 24, f"the tensor count {tensor_count}")
    raw = [_entry(reader, index) for index in range(tensor_count)]
    base = _aligned(reader, metadata)
    return GGUFHeader(metadata, _place(reader, raw, base))


_Raw = tuple[str, tuple[int, ...], int, int]


def _entry(reader: _Reader, index: int) -> _Raw:
    """(name, shape, type, offset in the data section)"""
    name = reader.string(f"tensor name {index}")
    count = reader.u32(f"the dimension count of tensor {name[:80]!r}")
    if not 1 <= count <= _MAX_DIMENSIONS:
        raise reader.fail(f"has {count} dimensions: 1 to {_MAX_DIMENSIONS} are allowed", name[:80])
    dims = struct.unpack(f"<{count}Q", reader.take(8 * count, f"the dimensions of tensor {name[:80]!r}"))
    return name, dims[::-1], reader.u32(f"the type of tensor {name[:80]!r}"), reader.u64(f"the offset of {name[:80]!r}")


def _aligned(reader: _Reader, metadata: dict[str, Any]) -> int:
    """The offset at which tensor data begins."""
    alignment = metadata.get("general.alignment", 32)
    if (
        isinstance(alignment, bool)
        or not isinstance(alignment, int)
        or alignment < 8
        or alignment & (alignment - 1)
        or alignment > 1 << 20
    ):
        raise reader.fail(
            f"metadata 'general.alignment' is {excerpt(alignment)}: expected a power of two from 8 to 2^20"
        )
    metadata["general.alignment"] = alignment
    return -(-reader.at // alignment) * alignment


def _place(reader: _Reader, raw: list[_Raw], base: int) -> dict[str, TensorEntry]:
    tensors: dict[str, TensorEntry] = {}
    for name, shape, kind, offset in raw:
        if name in tensors:
            raise reader.fail("occurs twice", name[:80])
        size = _size(reader, name, shape, kind)
        if base + offset + size > len(reader.data):
            raise reader.fail(
                f"needs {size} bytes at offset {base + offset}, but the file ends at {len(reader.data)}", name[:80]
            )
        if offset % 4:
            raise reader.fail(f"lies at the odd offset {offset}", name[:80])
        tensors[name] = TensorEntry(name, shape, kind, base + offset, size)
    return tensors


def _size(reader: _Reader, name: str, shape: tuple[int, ...], kind: int) -> int:
    """The bytes of a tensor, as a Python integer, so that no product overflows."""
    count = 1
    for length in shape:
        count *= length
    if not 0 < count < 1 << 50:
        raise reader.fail(f"has shape {list(shape)}: no tensor has so many (or no) values", name[:80])
    if kind in FLOAT_BYTES:
        return count * FLOAT_BYTES[kind]
    if kind not in BLOCK_SIZES:
        raise reader.fail(
            f"has GGUF type {TYPE_NAMES.get(kind, kind)}, which is not supported: {_SUPPORTED} are", name[:80]
        )
    block, elements, size = BLOCK_SIZES[kind]
    if shape[-1] % elements:
        raise reader.fail(f"has rows of {shape[-1]} values: no multiple of {block}'s {elements}", name[:80])
    return count // elements * size


def map_gguf(path: Path) -> tuple[mmap.mmap, GGUFHeader]:
    """Map a file and read its header. Raises ModelNotFound or CheckpointError."""
    if regular_size(path) == 0:
        raise CheckpointError("the file is empty", str(path))
    try:
        with path.open("rb") as file:
            # A private copy-on-write map: torch wants memory it could write to, and pages stay shared until it does.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return data, parse_header(memoryview(data), str(path))
