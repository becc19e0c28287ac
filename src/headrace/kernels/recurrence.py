"""What the scans over a recurrent state share: a pool of states by sequence slot, and chunks at absolute positions.

A scan computes positions CHUNK i … CHUNK i + CHUNK - 1 of a sequence together. Where a prompt is cut, or a decode stands, inside
such a chunk, the pool still holds the state before the chunk, and beside it the inputs of the tokens since (`pending`, one row a
token, float32): the next call computes the chunk again from its start. So a token's arithmetic is the same decoded, in chunks
of a prompt cut anywhere, in a whole prompt and after a preemption, and the state is written once a chunk instead of once a token.

A sequence at position 0 needs no clearing: before its first chunk is full the state counts as zero, and of `pending` only rows
of earlier tokens of the same sequence are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace.kernels.ops import Batch

__all__ = ["CHUNK", "Unrolled", "unroll"]

Tensor = torch.Tensor
CHUNK = 16
"""Positions of a chunk: as few as a matrix unit takes, since a decode computes all of them."""


@dataclass(frozen=True, slots=True)
class Unrolled:
    """A ragged batch with time in a dimension of its own, each sequence from the start of the chunk that it stands in. S sequences,
    N steps."""

    rows: Tensor
    """float32 [S, N, W]: what `pending` keeps of a token; zeros past a sequence's end."""
    held: Tensor
    """int64 [S]: rows of tokens of earlier calls."""
    total: Tensor
    """int64 [S]: rows in all."""
    slots: Tensor
    started: Tensor
    """bool [S]: a chunk has been completed before, so the pool's state counts."""
    place: tuple[Tensor, Tensor]
    """(sequence, step) of each token of the batch."""

    def spread(self, x: Tensor) -> Tensor:
        """[S, N, …] of a value a token [T, …]; zeros elsewhere."""
        out = x.new_zeros(*self.rows.shape[:2], *x.shape[1:])
        out[self.place] = x
        return out

    def state(self, pool: Tensor) -> Tensor:
        """float32 [S, …] at the first step."""
        return torch.where(self.started.view(-1, *[1] * (pool.dim() - 1)), pool[self.slots].float(), 0.0)

    def keep(self, pending: Tensor) -> None:
        """Write the rows of each sequence's unfinished chunk."""
        for row in range(CHUNK):
            step = self.total // CHUNK * CHUNK + row
            fresh = ((step < self.total) & (step >= self.held)).nonzero()[:, 0]
            pending[self.slots[fresh], row] = self.rows[fresh, step[fresh]]


def unroll(batch: Batch, pending: Tensor, rows: Tensor) -> Unrolled:
    """`pending` float32 [slots, CHUNK, W] and the new tokens' rows [T, W]."""
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
