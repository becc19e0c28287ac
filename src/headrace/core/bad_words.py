"""Token sequences that the output may not hold, as a mask of the token that would complete one."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.core.matcher import Matcher

__all__ = ["BadWords", "without_bad_words"]

Masks = npt.NDArray[np.uint32]


class BadWords:
    """A `core.matcher.Matcher`: every token is allowed, or those of the inner one, but for the last token of a word
    whose other tokens are the latest of the output."""

    def __init__(self, words: Sequence[Sequence[int]], vocab_size: int, inner: Matcher | None = None) -> None:
        self._inner = inner
        self._latest: tuple[int, ...] = ()
        self._longest = max(map(len, words)) - 1
        self._words = tuple((tuple(word[:-1]), word[-1]) for word in words)
        self._all: Masks = np.full(-(-vocab_size // 32), 0xFFFFFFFF, np.uint32)

    @property
    def mask(self) -> Masks:
        allowed: Masks = self._all if self._inner is None else self._inner.mask
        length = len(self._latest)
        banned = [last for start, last in self._words if self._latest[length - len(start) :] == start]
        if not banned:
            return allowed
        masked: Masks = allowed.copy()
        for token in banned:
            masked[token // 32] &= ~np.uint32(1 << token % 32)
        return masked

    @property
    def accepting(self) -> bool:
        return self._inner is None or self._inner.accepting

    @property
    def stopped(self) -> bool:
        return self._inner is not None and self._inner.stopped

    def forced(self) -> Sequence[int]:
        """None: what a grammar forces may complete a word."""
        return ()

    def copy(self) -> BadWords:
        copied = copy.copy(self)
        copied._inner = None if self._inner is None else self._inner.copy()
        return copied

    def advance(self, token: int) -> str | None:
        self._latest = (*self._latest, token)[-self._longest :] if self._longest else ()
        return None if self._inner is None else self._inner.advance(token)


def without_bad_words(words: Sequence[Sequence[int]], vocab_size: int, inner: Matcher | None) -> Matcher | None:
    """The matcher of a sequence. Words of one token alone need none: they are banned as by a bias."""
    return BadWords(words, vocab_size, inner) if any(len(word) > 1 for word in words) else inner
