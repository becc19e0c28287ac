"""A file of packed weights: a checked header, then buffers at multiples of 64 bytes, with a checksum per piece.

    8 bytes   magic and version
    8 bytes   length of the header
    32 bytes  BLAKE2b of the header
    header    JSON: `key`, `about`, `tree`, `size` of the payload, `buffers` as [offset, bytes, sum per piece…]
    zeros     up to a multiple of 4096
    payload

It is written to a temporary file and then renamed, so that a reader finds the complete file or none. A checksum depends
on the position of each word: it detects a changed bit, a lost page, two exchanged pages and a truncated file, at a
fraction of the cost of reading (`_sum`).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.checkpoints.packed.atomic import replacing

__all__ = ["Unsound", "read", "read_header", "write"]

_MAGIC = b"HRPACK\0\2"
_FIXED = struct.Struct("<8sQ32s")
_PAGE = 4096
_ALIGN = 64
_PIECE = 1 << 20
"""Bytes per checksum: they stay in a core's cache between reading and adding."""
_ROW = 4096
"""Bytes per row when a piece is summed by rows and by columns."""
_LONGEST_HEADER = 1 << 28
_READERS = 2

Bytes = npt.NDArray[np.uint8]


class Unsound(Exception):
    """The file is invalid; the message gives the reason. Never leaves the cache."""


def write(path: Path, key: str, about: dict[str, Any], tree: Any, buffers: Sequence[torch.Tensor]) -> int:
    """Write a file and return its size. Buffers are contiguous tensors of any type. Raises OSError."""
    arrays = [_bytes(buffer) for buffer in buffers]
    entries, at = [], 0
    for array in arrays:
        entries.append([at, len(array), *(_sum(array[i : i + _PIECE]) for i in range(0, len(array), _PIECE))])
        at = _up(at + len(array), _ALIGN)
    text = json.dumps({"key": key, "about": about, "tree": tree, "size": at, "buffers": entries}).encode()
    with replacing(path) as file:
        file.write(_FIXED.pack(_MAGIC, len(text), _digest(text)) + text)
        start = _up(file.tell(), _PAGE)
        for (offset, *_), array in zip(entries, arrays, strict=True):
            file.write(bytes(start + offset - file.tell()))
            file.write(array.data)
        file.write(bytes(start + at - file.tell()))
    return start + at


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """(the checked header, the offset of the payload). Raises Unsound and OSError."""
    if not path.is_file():
        raise Unsound("it is no file")
    with path.open("rb") as file:
        fixed = file.read(_FIXED.size)
        if len(fixed) < _FIXED.size:
            raise Unsound(f"it has {len(fixed)} bytes")
        magic, length, digest = _FIXED.unpack(fixed)
        if magic != _MAGIC:
            raise Unsound(f"it begins with {magic!r}, not with {_MAGIC!r}")
        if length > _LONGEST_HEADER:
            raise Unsound(f"its header claims {length} bytes")
        text = file.read(length)
        size = os.fstat(file.fileno()).st_size
    if len(text) != length or _digest(text) != digest:
        raise Unsound("its header is damaged")
    header: dict[str, Any] = json.loads(text)
    start = _up(_FIXED.size + length, _PAGE)
    if size != start + header["size"]:
        raise Unsound(f"it has {size} bytes, not {start + header['size']}")
    return header, start


def read(path: Path, key: str, take: Callable[[int], torch.Tensor]) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """The header and the buffers, uint8, in memory from `take(bytes)`. Raises Unsound and OSError."""
    header, start = read_header(path)
    if header["key"] != key:
        raise Unsound("it holds another model, or the same in another form")
    memory = take(header["size"])
    room: Bytes = memory.numpy()
    jobs = [
        (room[at + done : at + min(done + _PIECE, size)], start + at + done, sums[done // _PIECE])
        for at, size, *sums in header["buffers"]
        for done in range(0, size, _PIECE)
    ]
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(_READERS) as pool:
        # Reading and adding both let go of the interpreter's lock.
        parts = [pool.submit(_read_pieces, file.fileno(), jobs[i::_READERS]) for i in range(_READERS)]
        for part in parts:
            part.result()
    return header, [memory[at : at + size] for at, size, *_ in header["buffers"]]


def _read_pieces(descriptor: int, jobs: Sequence[tuple[Bytes, int, int]]) -> None:
    for target, offset, expected in jobs:
        done = 0
        while done < len(target):
            count = os.preadv(descriptor, [target[done:].data], offset + done)
            if not count:
                raise Unsound("it ends early")
            done += count
        if _sum(target) != expected:
            raise Unsound(f"the bytes from {offset} on are not what was written")


def _bytes(buffer: torch.Tensor) -> Bytes:
    array: Bytes = buffer.detach().reshape(-1).view(torch.uint8).numpy()
    return array


def _sum(piece: Bytes) -> int:
    """A checksum of 64 bits that depends on the order of the bytes.

    The piece is a table of 64-bit words, one row per page. The sums of its rows and of its columns go through a CRC
    each, with the bytes after the last complete row. Up to three changed words always change a sum of a row or of a
    column, and words that change places change the sums of the rows or columns that they leave. Two passes of
    vectorized additions cost a sixth of a CRC of the complete piece.
    """
    whole = len(piece) // _ROW * _ROW
    table = piece[:whole].view(np.uint64).reshape(-1, _ROW // 8)
    rows, columns = table.sum(axis=1, dtype=np.uint64), table.sum(axis=0, dtype=np.uint64)
    return zlib.crc32(rows.data) << 32 | zlib.crc32(piece[whole:].data, zlib.crc32(columns.data))


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=32).digest()


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
