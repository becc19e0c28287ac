"""What a step does besides computing tokens, and what its commit needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.core.constraints import Constraints
from headrace.core.decodes import Decodes
from headrace.core.prefill_chunk import PrefillChunk
from headrace.core.sequence import Sequence
from headrace.types import NO_TOKEN, StepResult

__all__ = ["ConstrainedRow", "StepExtras", "StepRecord"]

Ints = npt.NDArray[np.int32]


class ConstrainedRow(NamedTuple):
    """A row with bias, bans or masks."""

    row: int
    position: int
    """Index in the sequence of the token to be sampled."""
    own: Constraints
    seq: Sequence
    epoch: int
    target: int = NO_TOKEN
    """The token that must come if the drafts before it are right."""


@dataclass(slots=True)
class StepExtras:
    """The work of a step besides computing tokens."""

    copies: list[tuple[int, int]] = field(default_factory=list)
    history: list[tuple[int, int, Ints]] = field(default_factory=list)
    """(slot, first position, tokens)"""


@dataclass(slots=True)
class StepRecord:
    """The data of a launched plan that commit needs. Rows of the decodes come first."""

    decodes: Decodes
    count: int
    offsets: Ints
    """[count]; the offset of each decode's token in its block."""
    fills: bool
    """One of the tokens fills its block."""
    chunks: list[PrefillChunk]
    waiting: list[ConstrainedRow] = field(default_factory=list)
    """Constrained rows of a split step."""

    def sequences(self) -> list[tuple[Sequence, int]]:
        """All that take part, each with its epoch."""
        chunks = [(chunk.seq, chunk.epoch) for chunk in self.chunks]
        return [*zip(self.decodes.seqs, self.decodes.epochs, strict=True), *chunks]

    def settled(self, result: StepResult) -> list[PrefillChunk]:
        """The chunks. Those that the device has placed get their true end, and the drafts as far as they were right;
        the other ones that it had stand as NO_TOKEN."""
        for at, chunk in enumerate(self.chunks, self.count):
            if chunk.length is not None:
                assert result.counts is not None
                count, made = result.counts[at].tolist()
                right: list[int] = result.tokens[chunk.row : chunk.row + count - 1].tolist()
                chunk.end, chunk.planned = len(chunk.seq.tokens), len(chunk.drafts)
                chunk.drafts = right + [NO_TOKEN] * (made + 1 - count)
        return self.chunks
