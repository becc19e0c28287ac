"""Checks of the tensors that schemes read."""

from __future__ import annotations

import torch

from headrace.quant.scheme import TensorReader

__all__ = ["expect", "floats", "indices", "one_scale"]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def expect(
    reader: TensorReader, name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The tensor itself. Raises CheckpointError if its shape or type differs; `dtype` None allows every type."""
    if tuple(tensor.shape) != shape:
        raise reader.error(f"has shape {list(tensor.shape)}: expected {list(shape)}", name)
    if dtype is not None and tensor.dtype != dtype:
        raise reader.error(f"has type {tensor.dtype}: expected {dtype}", name)
    return tensor


def floats(reader: TensorReader, name: str) -> torch.Tensor:
    """A tensor of plain floats, as float32. Raises CheckpointError for another type and for an empty tensor."""
    tensor = reader.get(name)
    if tensor.dtype not in _FLOATS or tensor.numel() == 0:
        raise reader.error(f"is {tensor.dtype} {list(tensor.shape)}: expected floats", name)
    return tensor.float()


def one_scale(reader: TensorReader, name: str) -> torch.Tensor:
    """The only float of a tensor, as float32 [1]. Raises CheckpointError."""
    return expect(reader, name, floats(reader, name).reshape(-1), (1,))


def indices(reader: TensorReader, name: str, count: int, below: int) -> torch.Tensor:
    """An int32 or int64 tensor of shape [count], as int32, all values less than `below`. Raises CheckpointError."""
    tensor = expect(reader, name, reader.get(name), (count,))
    if tensor.dtype not in (torch.int32, torch.int64):
        raise reader.error(f"has type {tensor.dtype}: expected torch.int32", name)
    if int(tensor.max()) >= below:
        raise reader.error(f"names group {int(tensor.max())} of {below}", name)
    return tensor.int()
