"""Kinds of guesses that continue a match: by the number of tokens that matched before the guessed one."""

from __future__ import annotations

__all__ = ["LONGEST", "MATCH_PRIORS", "match_kinds"]

LONGEST = 32
"""Matches longer than this are not told apart."""
_STARTS = (0, 2, 3, 4, 6, 9, 14, 22, 32)
"""The shortest match of each kind."""
MATCH_PRIORS = (0.3, 0.4, 0.5, 0.63, 0.71, 0.82, 0.88, 0.91, 0.95)
"""Measured on Python's documentation and source in the tokens of SmolLM2."""
_KIND = [sum(length >= start for start in _STARTS) - 1 for length in range(LONGEST + 1)]


def match_kinds(length: int, count: int) -> list[int]:
    """The kinds of `count` tokens after a match of `length`: each right token makes the match longer."""
    kinds = _KIND[length : length + count]
    return kinds + [_KIND[LONGEST]] * (count - len(kinds))
