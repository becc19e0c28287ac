"""An index of where the last tokens of a text occurred before.

For every run of `width` tokens it keeps the position of the latest occurrence, and for every position that of the
occurrence before it, as dictionary coders of the LZ77 family do. Adding a token is one step. Looking for the longest
match follows the chain of one run back from the latest occurrence, over a bounded number of occurrences. A suffix
automaton needs no such bound, but each token costs several times more in Python, and it does not know which occurrence
is the latest.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

__all__ = ["GAP", "Occurrences"]

GAP = -1
"""A token that matches none: it separates texts."""
_BITS = 21
"""Of a token id. Ids that differ by a multiple of 2^21 share a key, which costs time and no correctness."""
_BULK = 64
"""From this many tokens on, the first ones are indexed by numpy."""


class Occurrences:
    """Tokens, and where runs of `width` of them (1 to 3) occur. It takes about 100 bytes a token."""

    def __init__(self, width: int = 2) -> None:
        assert 1 <= width <= 3, "the key of a run has 63 bits"
        self.width = width
        self.tokens: list[int] = []
        self._mask = (1 << _BITS * width) - 1
        self._key = self._mask
        self._latest: dict[int, int] = {}
        self._before = array("i")

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end."""
        if len(tokens) >= _BULK and not self.tokens:
            self._fill(tokens)
            return
        key, mask, latest, before = self._key, self._mask, self._latest, self._before
        for at, token in enumerate(tokens, len(self.tokens)):
            key = (key << _BITS | token) & mask
            before.append(latest.get(key, -1))
            latest[key] = at
        self.tokens.extend(tokens)
        self._key = key

    def _fill(self, tokens: Sequence[int]) -> None:
        """`extend` for the first tokens: a stable sort brings the positions of each run together, in their order."""
        gap = (1 << _BITS) - 1
        ids = np.concatenate([np.full(self.width - 1, gap, np.int64), np.asarray(tokens, np.int64) & gap])
        keys = np.zeros(len(tokens), np.int64)
        for at in range(self.width):
            keys = keys << _BITS | ids[at : at + len(tokens)]
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        repeated = ordered[1:] == ordered[:-1]
        before = np.full(len(tokens), -1, np.int32)
        before[order[1:][repeated]] = order[:-1][repeated]
        self._before.frombytes(before.tobytes())
        self._latest = dict(zip(ordered.tolist(), order.tolist(), strict=True))
        self.tokens.extend(tokens)
        self._key = int(keys[-1])

    def earlier(self, longest: int, most: int, keep: int) -> tuple[int, list[int]]:
        """Where the end of this text occurred before: `after` for the text itself."""
        count = len(self.tokens)
        if count <= self.width:
            return 0, []
        return self._follow(self._before[count - 1], self.tokens, longest, most, keep)

    def after(self, text: Sequence[int], longest: int, most: int, keep: int) -> tuple[int, list[int]]:
        """The length of the longest match (from `width` to `longest` tokens) between the end of `text` and any place
        here, among the latest `most` occurrences of its last `width` tokens; and the positions after each match of that
        length, the latest first, at most `keep` of them. (0, []) without a match."""
        if len(text) < self.width:
            return 0, []
        key = 0
        for token in text[-self.width :]:
            key = key << _BITS | token
        return self._follow(self._latest.get(key, -1), text, longest, most, keep)

    def _follow(self, at: int, text: Sequence[int], longest: int, most: int, keep: int) -> tuple[int, list[int]]:
        tokens, before, end = self.tokens, self._before, len(text)
        best, found = self.width, list[int]()
        wanted = list(text[end - best :])
        while at >= 0 and most > 0:
            most -= 1
            stop = at + 1
            # One comparison shows most occurrences to be shorter than the best.
            if stop >= best and tokens[stop - best : stop] == wanted:
                length, limit = best, min(longest, stop, end)
                while length < limit and tokens[stop - length - 1] == text[end - length - 1]:
                    length += 1
                if length > best:
                    best, wanted, found = length, list(text[end - length :]), []
                if len(found) < keep:
                    found.append(stop)
                if best == longest and len(found) == keep:
                    break
            at = before[at]
        return (best, found) if found else (0, found)

    def copy(self, start: int, most: int) -> list[int]:
        """The `most` tokens from `start` on, if this text goes on as it did there: a copy that reaches the end goes on
        with its own beginning, as text with a period does."""
        found = self.tokens[start : start + most]
        if found and len(found) < most:
            found *= -(-most // len(found))
            del found[most:]
        return found
