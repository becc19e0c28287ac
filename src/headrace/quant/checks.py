"""Checks that every scheme makes on the tensors it reads."""

from __future__ import annotations

import torch

from headrace.quant.scheme import Reader

__all__ = ["expect"]


def expect(
    reader: Reader, name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The tensor itself. Raises CheckpointError where shape or type differ; None allows any type."""
    if tuple(tensor.shape) != shape:
        raise reader.error(f"has shape {list(tensor.shape)}: expected {list(shape)}", name)
    if dtype is not None and tensor.dtype != dtype:
        raise reader.error(f"has type {tensor.dtype}: expected {dtype}", name)
    return tensor
