"""The layout that scans over a recurrent state share: states by sequence slot, and chunks at absolute positions.

A scan computes positions CHUNK i … CHUNK i + CHUNK - 1 of a sequence together. If a prompt is split inside such a
chunk, or a decode ends inside it, the pool holds the state before the chunk and the inputs of the tokens since then
(`pending`, one float32 row per token): the next call computes the chunk again from its start. So a token's arithmetic
is the same in a decode, in a prompt split at any position, in a complete prompt and after a preemption. The state is
written once per chunk instead of once per token.

A slot need not be cleared for a new sequence: until its first chunk is full, the state counts as zero, and only the
`pending` rows of earlier tokens of the same sequence are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace.kernels.ops import Batch

__all__ = ["CHUNK", "Unrolled", "unroll"]

Tensor = torch.Tensor
CHUNK = 16
"""Positions per chunk: the smallest size of matrix units, since a decode computes all of them."""


@dataclass(frozen=True, slots=True)
class Unrolled:
    """A ragged batch with a separate time dimension: S sequences, N steps.

    Each sequence begins at the start of its current chunk.
    """

    rows: Tensor
    """float32 [S, N, W]: the inputs of each token that `pending` stores; zeros past a sequence's end."""
    held: Tensor
    """int64 [S]: rows from earlier calls."""
    total: Tensor
    """int64 [S]: rows in all."""
    slots: Tensor
    started: Tensor
    """bool [S]: a chunk was completed before, so that the pool's state is valid."""
    place: tuple[Tensor, Tensor]
    """(sequence, step) of each token of the batch."""

    def spread(self, x: Tensor) -> Tensor:
        """Arrange values per token [T, …] as [S, N, …], with zeros elsewhere."""
        out = x.new_zeros(*self.rows.shape[:2], *x.shape[1:])
        out[self.place] = x
        return out

    def state(self, pool: Tensor) -> Tensor:
        """The state before the first step, float32 [S, …]."""
        return torch.where(self.started.view(-1, *[1] * (pool.dim() - 1)), pool[self.slots].float(), 0.0)

    def keep(self, pending: Tensor) -> None:
        """Write the rows of each sequence's unfinished chunk to `pending`."""
        for row in range(CHUNK):
            step = self.total // CHUNK * CHUNK + row
            fresh = ((step < self.total) & (step >= self.held)).nonzero()[:, 0]
            pending[self.slots[fresh], row] = self.rows[fresh, step[fresh]]


def unroll(batch: Batch, pending: Tensor, rows: Tensor) -> Unrolled:
    """Unroll the new tokens' rows [T, W] behind those in `pending`, float32 [slots, CHUNK, W]."""
    tokens, seqs = int(batch.sizes[0]), int(batch.sizes[1])
    start, context = batch.query_start[: seqs + 1].long(), batch.context_lens[:seqs].long()
    count = start[1:] - start[:-1]
    before, slots = context - count, batch.slots[:seqs].long()
    held, total = before % CHUNK, before % CHUNK + count
    seq = batch.token_seq[:tokens].long()
    step = torch.arange(tokens, device=seq.device) - start[seq] + held[seq]
    steps = int(total.max()) if seqs else 0
    wide = rows.new_zeros(seqs, steps, rows.shape[1], dtype=torch.float32)
    old = pending[slots, :steps].float()
    earlier = torch.arange(old.shape[1], device=seq.device) < held.unsqueeze(1)
    wide[:, : old.shape[1]] = torch.where(earlier.unsqueeze(-1), old, 0.0)
    wide[seq, step] = rows[:tokens].float()
    return Unrolled(wide, held, total, slots, before >= CHUNK, (seq, step))
