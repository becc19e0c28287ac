"""Pools the hidden states of a sequence's tokens, in the order of the tokens, whatever the chunks are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.embedding_facts import Pooling

__all__ = ["Pool"]


@dataclass(slots=True)
class Pool:
    """The pooled hidden states of one sequence of `length` tokens.

    With `mean`, the state of every token is needed, so tokens that were not pooled yet may not come from the cache.
    """

    kind: Pooling
    length: int
    planned: int = 0
    """Tokens whose states launched steps compute, and those before them."""
    count: int = 0
    """Tokens that have been pooled, or that need not be."""
    total: npt.NDArray[np.float64] | None = None
    """Their sum; with `last`, the state of the last token."""

    @property
    def reusable(self) -> int:
        """The number of tokens that may come from the cache."""
        return self.length - 1 if self.kind == "last" else min(self.planned, self.length - 1)

    def needs(self, stop: int) -> bool:
        """Whether the states of tokens that end at `stop` are pooled."""
        return self.kind == "mean" or stop == self.length

    def forget_plans(self) -> None:
        """The launched steps have been lost."""
        self.planned = self.count

    def add(self, start: int, states: npt.NDArray[np.float32]) -> bool:
        """Pool the states [n, hidden] of the tokens from `start` on; those that were computed again count once. False:
        they are not finite."""
        new = states[-1:] if self.kind == "last" else states[max(0, self.count - start) :]
        self.count = max(self.count, start + len(states))
        if not len(new):
            return True
        rows = new.astype(np.float64)
        if self.total is not None:
            rows = np.concatenate([self.total[None], rows])
        # Along the first axis numpy adds row after row, so the bits don't depend on where chunks end.
        self.total = np.add.reduce(rows, axis=0)
        return bool(np.isfinite(self.total).all())

    @property
    def embedding(self) -> bytes:
        """float32 [hidden], little-endian."""
        assert self.total is not None
        assert self.count == self.length
        pooled = self.total if self.kind == "last" else self.total / self.length
        return pooled.astype("<f4").tobytes()
