"""Expands scales per tensor, channel, group or two-dimensional tile to one row per output."""

from __future__ import annotations

import torch

from headrace.quant.scheme import TensorReader

__all__ = ["column_groups", "expand_tiles"]

Tensor = torch.Tensor


def expand_tiles(
    reader: TensorReader, name: str, table: Tensor, shape: tuple[int, int], tile: tuple[int, int]
) -> Tensor:
    """Expand a scalar, [1], [N], [N, 1], [N, G] or [ceil(N / tile rows), G] to [N, G].

    Raises CheckpointError for other shapes.
    """
    if table.numel() == 1:
        return table.reshape(1, 1).expand(shape[0], 1).contiguous()
    if table.dim() == 1:
        table = table.unsqueeze(1)
    if table.dim() == 2 and table.shape[0] == shape[0]:
        return table.contiguous()
    if table.dim() == 2 and table.shape[0] == -(-shape[0] // tile[0]):
        return table.repeat_interleave(tile[0], dim=0)[: shape[0]].contiguous()
    raise reader.error(f"has shape {list(table.shape)} for a weight of {list(shape)}", name)


def column_groups(columns: int, groups: int, size: int | None) -> Tensor | None:
    """Each column's group, int32 [K], if the last group is shorter; None if all groups are equal runs."""
    if size is None or size <= 0 or columns == groups * size or groups == 1:
        return None
    return (torch.arange(columns) // size).int()
