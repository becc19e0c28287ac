"""A grammar for tests of devices: what it allows follows from a hash of the text."""

from __future__ import annotations

import copy
import zlib

import numpy as np
import numpy.typing as npt

__all__ = ["FixedGrammar"]


class FixedGrammar:
    """A `core.matcher.Matcher`. It allows a third of the tokens; after every other text it forces a run of one to three
    tokens."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._run: list[int] = []
        self.text: list[int] = []
        self.mask = self._mask()

    @property
    def accepting(self) -> bool:
        return True

    @property
    def stopped(self) -> bool:
        return False

    def allowed(self) -> frozenset[int]:
        """The tokens that may come next. Beside a forced token another is allowed: a text can be cut in other ways."""
        if self._run:
            return frozenset({self._run[0], (self._run[0] + 1) % self._vocab})
        third = self._hash("third") % 3
        return frozenset(range(third, self._vocab, 3))

    def copy(self) -> FixedGrammar:
        copied = copy.copy(self)
        copied.text = [*self.text]
        return copied

    def forced(self) -> list[int]:
        return self._run

    def advance(self, token: int) -> str | None:
        """Raises AssertionError for a token that is not allowed."""
        assert token in self.allowed(), f"token {token} after {self.text} is not allowed by the mask"
        forced, self._run = self._run, self._run[1:] if token in self._run[:1] else []
        self.text.append(token)
        found = self._hash("run")
        if not forced and found % 2:
            self._run = [found // 7**i % self._vocab for i in range(1, 2 + found // 2 % 3)]
        self.mask = self._mask()
        return None

    def _hash(self, purpose: str) -> int:
        return zlib.crc32(f"{purpose} {self.text}".encode())

    def _mask(self) -> npt.NDArray[np.uint32]:
        bits = np.zeros(-(-self._vocab // 32) * 32, np.bool_)
        bits[sorted(self.allowed())] = True
        return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
