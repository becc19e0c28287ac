"""Checks that every scheme makes on the tensors it reads."""

from __future__ import annotations

import torch

from headrace.quant.scheme import Reader

__all__ = ["expect", "floats", "indices", "one_scale"]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def expect(
    reader: Reader, name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The tensor itself. Raises CheckpointError where shape or type differ; None allows any type."""
    if tuple(tensor.shape) != shape:
        raise reader.error(f"has shape {list(tensor.shape)}: expected {list(shape)}", name)
    if dtype is not None and tensor.dtype != dtype:
        raise reader.error(f"has type {tensor.dtype}: expected {dtype}", name)
    return tensor


def floats(reader: Reader, name: str) -> torch.Tensor:
    """A tensor of plain floats, as float32. Raises CheckpointError for any other type, and for one without values."""
    tensor = reader.get(name)
    if tensor.dtype not in _FLOATS or tensor.numel() == 0:
        raise reader.error(f"is {tensor.dtype} {list(tensor.shape)}: expected floats", name)
    return tensor.float()


def one_scale(reader: Reader, name: str) -> torch.Tensor:
    """float32 [1] of a tensor that holds one float. Raises CheckpointError."""
    return expect(reader, name, floats(reader, name).reshape(-1), (1,))


def indices(reader: Reader, name: str, count: int, below: int) -> torch.Tensor:
    """[count] of int32 or int64, none as large as `below`. Raises CheckpointError."""
    tensor = expect(reader, name, reader.get(name), (count,))
    if tensor.dtype not in (torch.int32, torch.int64):
        raise reader.error(f"has type {tensor.dtype}: expected torch.int32", name)
    if int(tensor.max()) >= below:
        raise reader.error(f"names group {int(tensor.max())} of {below}", name)
    return tensor.int()
