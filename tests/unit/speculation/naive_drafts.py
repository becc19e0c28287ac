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


def suffix(
    text: Sequence[int], answers: Sequence[Sequence[int]], width: int, longest: int, occurrences: int, most: int
) -> list[int]:
    """What `SuffixDrafter` guesses after `text`: `answers` are in the order of their ends, and few enough to be all
    kept in one part."""
    known, kept = list(text), [token for answer in answers if len(answer) >= width for token in [*answer, -1]]
    own = matches(known[:-1], known, width, longest, occurrences, 99)
    other = matches(kept, known, width, longest, occurrences, 99)
    best = max(own[0], other[0])
    places = [("own", at) for at in own[1] if own[0] == best] + [("kept", at) for at in other[1] if other[0] == best]
    whole = 1.0
    while best and places and len(known) < len(text) + most:
        tokens = [(known if where == "own" else kept)[at] for where, at in places]
        counts = {token: tokens.count(token) for token in tokens}
        token = max(counts, key=lambda token: (counts[token], -tokens.index(token)))
        whole *= counts[token] / len(tokens)
        if token < 0 or whole < 0.1:
            break
        known.append(token)
        places = [(where, at + 1) for (where, at), found in zip(places, tokens, strict=True) if found == token]
    return known[len(text) :]


def aligned(prediction: Sequence[int], output: Sequence[int]) -> int | None:
    """Where `PredictedDrafter` stands in the prediction after an output."""
    place: int | None = 0
    near = run = 0
    for at, token in enumerate(output, 1):
        if place is not None and place < len(prediction) and prediction[place] == token:
            place, run = place + 1, run + 1
            near = place
            continue
        _, stops = matches(prediction, output[:at], 2, 32, 999, 999)
        if stops:
            place = near = min(stops, key=lambda stop: (stop < near, abs(stop - near)))
            run = 2
        else:
            place = place + 1 if place is not None and run else None
            run = 0
    return place


def noisy_copies(rng: random.Random, pattern: Sequence[int], count: int, keep: float, vocabulary: int) -> list[int]:
    """The pattern again and again; a token is kept with probability `keep` and else any."""
    return [token if rng.random() < keep else rng.randrange(vocabulary) for _ in range(count) for token in pattern]
