"""Reference of `embedding`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from headrace.kernels.weight import Weight

__all__ = ["embedding", "of_part"]


def embedding(ids: torch.Tensor, table: Weight, scale: float, first_row: int | None = None) -> torch.Tensor:
    """float32 [T, D]: rows of the table times scale. Only the requested rows are dequantized."""
    if first_row is not None:
        return of_part(lambda own: embedding(own, table, scale), ids, first_row, table.shape[0])
    if table.parts:
        return table.dequantize()[ids.long()] * scale
    return table.take(ids.long()).dequantize() * scale


def of_part(
    embed: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor, first_row: int, rows: int
) -> torch.Tensor:
    """`embed` for the ids of a table that holds `rows` rows from `first_row` on, and zeros for all other ids.

    It doesn't wait for the device.
    """
    own = ids - first_row
    inside = (own >= 0) & (own < rows)
    return torch.where(inside.unsqueeze(1), embed(torch.where(inside, own, 0)), 0.0)
