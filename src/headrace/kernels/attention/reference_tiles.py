"""The two matrix products of the attention reference, on tiles of fixed shape."""

from __future__ import annotations

import torch

from headrace.kernels import paged
from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch

__all__ = ["QUERIES", "QueryTiles"]

Tensor = torch.Tensor
QUERIES = 8
"""Positions per tile. All of them are computed, even for a decode, which uses only one."""


class QueryTiles:
    """Queries [T, Hq, d] in tiles of 8 positions of one sequence; the G query heads of a KV head share one product."""

    def __init__(self, q: Tensor, batch: Batch, kv_heads: int) -> None:
        tokens, heads, size = q.shape
        self.position = batch.positions[:tokens].long()
        sequence = batch.token_seq[:tokens].long()
        pairs = torch.stack([sequence, self.position // QUERIES])
        names, self._tile = torch.unique(pairs, dim=1, return_inverse=True)
        self._sequence, self._row = names[0], self.position % QUERIES
        self._batch, self._groups = batch, (kv_heads, heads // kv_heads)
        grid = q.new_zeros(names.shape[1], QUERIES, heads, size)
        grid[self._tile, self._row] = q
        self._grid = self._fold(grid)
        self._used, self._at, self._values = self._tile, self._tile, q

    def scores(self, rows: Tensor, kv: TorchKV, layer: int, keys: Tensor) -> Tensor:
        """[rows, Hq, keys]: products of the queries `rows` with their sequence's keys at positions `keys`.

        Also reads the values for `mix`.
        """
        self._used, self._at = torch.unique(self._tile[rows], return_inverse=True)
        self._row_now = self._row[rows]
        sequences, which = torch.unique(self._sequence[self._used], return_inverse=True)
        absent = keys >= self._batch.context_lens.long()[sequences, None]
        tables = self._batch.block_tables[sequences]

        def fetch(store: list[Tensor], scales: list[Tensor]) -> Tensor:
            x = paged.span(store, scales, layer, tables, int(keys[0]) // paged.SPAN)
            if absent.any():  # memory that was never written may hold NaN, and 0 times NaN is NaN
                x = x.masked_fill(absent[:, None, :, None], 0.0)
            return (x if len(sequences) == len(which) else x[which]).flatten(0, 1)

        self._values = fetch(kv.values, kv.value_scales)
        product = torch.bmm(self._grid[self._used].flatten(0, 1), fetch(kv.keys, kv.key_scales).transpose(1, 2))
        return self._unfold(product)[self._at, self._row_now]

    def mix(self, part: Tensor) -> Tensor:
        """[rows, Hq, d]: weights [rows, Hq, keys] of the rows of the last `scores` call, times their values."""
        grid = part.new_zeros(len(self._used), QUERIES, *part.shape[1:])
        grid[self._at, self._row_now] = part
        return self._unfold(torch.bmm(self._fold(grid).flatten(0, 1), self._values))[self._at, self._row_now]

    def _fold(self, grid: Tensor) -> Tensor:
        """[tiles, 8, Hq, x] to [tiles, Hk, G 8, x]."""
        split = grid.view(*grid.shape[:2], *self._groups, grid.shape[-1])
        return split.permute(0, 2, 3, 1, 4).flatten(2, 3).contiguous()

    def _unfold(self, product: Tensor) -> Tensor:
        """[tiles Hk, G 8, x] to [tiles, 8, Hq, x]."""
        kv_heads, group = self._groups
        return product.view(-1, kv_heads, group, QUERIES, product.shape[-1]).permute(0, 3, 1, 2, 4).flatten(2, 3)
