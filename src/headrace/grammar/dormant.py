"""A matcher that sleeps while the model reasons."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.core.matcher import Matcher
from headrace.types import Constraint

__all__ = ["DormantMatcher", "with_reasoning"]


class DormantMatcher:
    """A `core.matcher.Matcher`. Every token is allowed until one has ended the reasoning; then the inner one follows.

    If the prompt has not begun the reasoning, the first token decides: it begins it, or the grammar allows it.
    """

    def __init__(self, inner: Matcher, ends: tuple[int, ...], opens: tuple[int, ...]) -> None:
        self._inner = inner
        self._ends, self._opens = frozenset(ends), frozenset(opens)
        self._undecided = bool(opens)
        self._asleep = not opens
        self._all: npt.NDArray[np.uint32] = np.full(inner.mask.shape, 0xFFFFFFFF, np.uint32)
        self._first: npt.NDArray[np.uint32] = inner.mask.copy()
        for token in opens:
            if 0 <= token < 32 * len(self._first):
                self._first[token // 32] |= np.uint32(1 << token % 32)

    @property
    def mask(self) -> npt.NDArray[np.uint32]:
        if self._undecided:
            return self._first
        return self._all if self._asleep else self._inner.mask

    @property
    def accepting(self) -> bool:
        return self._asleep or self._inner.accepting

    @property
    def stopped(self) -> bool:
        return not self._asleep and self._inner.stopped

    def forced(self) -> Sequence[int]:
        return [] if self._asleep or self._undecided else self._inner.forced()

    def copy(self) -> DormantMatcher:
        copied = copy.copy(self)
        copied._inner = self._inner.copy()
        return copied

    def advance(self, token: int) -> str | None:
        if self._undecided:
            self._undecided = False
            self._asleep = token in self._opens
            return None if self._asleep else self._inner.advance(token)
        if not self._asleep:
            return self._inner.advance(token)
        self._asleep = token not in self._ends
        return None


def with_reasoning(matcher: Matcher, constraint: Constraint) -> Matcher:
    """The matcher itself if the model does not reason before the constrained text."""
    return DormantMatcher(matcher, constraint.after, constraint.opens) if constraint.after else matcher
