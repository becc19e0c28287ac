"""The drafters' definitions read literally, and streams of tokens to try them on."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

TOKENS = st.lists(st.integers(0, 3), max_size=40)
"""Few different tokens, so that much repeats."""
NAMESPACE = ("", "")


def match_length(text: Sequence[int], stop: int, tail: Sequence[int], longest: int) -> int:
    """How many tokens before `stop` equal the end of `tail`."""
    length = 0
    while length < min(longest, stop, len(tail)) and text[stop - 1 - length] == tail[len(tail) - 1 - length]:
        length += 1
    return length


def matches(
    text: Sequence[int], tail: Sequence[int], width: int, longest: int, most: int, keep: int
) -> tuple[int, list[int]]:
    """`Occurrences.after`, by comparing everything with everything."""
    stops = [stop for stop in range(len(text), width - 1, -1) if list(text[stop - width : stop]) == list(tail[-width:])]
    lengths = {stop: match_length(text, stop, tail, longest) for stop in stops[:most]}
    if len(tail) < width or not lengths:
        return 0, []
    best = max(lengths.values())
    return best, [stop for stop, length in lengths.items() if length == best][:keep]


def ngram(text: Sequence[int], width: int, longest: int, occurrences: int, most: int) -> list[int]:
    """What `NgramDrafter` guesses after `text`."""
    known = list(text)
    _, after = matches(known[:-1], known, width, longest, occurrences, 1)
    for at in range(most if after else 0):
        known.append(known[after[0] + at])
    return known[len(text) :]


def noisy_copies(rng: random.Random, pattern: Sequence[int], count: int, keep: float, vocabulary: int) -> list[int]:
    """The pattern again and again; a token is kept with probability `keep` and else any."""
    return [token if rng.random() < keep else rng.randrange(vocabulary) for _ in range(count) for token in pattern]
