"""Suffix decoding: drafts from all places where the last tokens occurred, in a sequence's own text and in the answers
of earlier sequences.

After Oliaro et al., SuffixDecoding (arXiv 2411.04975): count how each occurrence of the longest known suffix went on,
follow the most frequent token, and guess only as far as the counts promise. The paper keeps suffix trees. Here the
counts come from the latest occurrences in an index (`occurrences.py`): a token costs one step and some bytes, not a
path of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.speculation.drafter import NO_GUESS, Guess
from headrace.speculation.hit_rates import HitRates
from headrace.speculation.kept_answers import KeptAnswers
from headrace.speculation.match_lengths import LONGEST, MATCH_PRIORS, match_kinds
from headrace.speculation.occurrences import GAP, Occurrences

__all__ = ["SuffixDrafter"]

_LEAST = 0.1
"""A guess ends where the counts give all its tokens together less than this probability."""
_ALONE, _UNANIMOUS, _MOST, _HALF, _FEW = range(5)
"""How far the occurrences agree on a token: there is one, all of several, 3/4 of them, half of them, fewer."""
_AGREEMENTS = 5
_PRIORS = [
    rate
    for prior in MATCH_PRIORS
    for rate in (0.97 * prior, 0.55 + 0.45 * prior, 0.75 * prior, 0.45 * prior, 0.22 * prior)
]
"""By match and agreement; measured as those of `match_lengths`."""


class _Text:
    """One sequence: its prompt and output so far."""

    __slots__ = ("namespace", "prompt", "rates", "text")

    def __init__(self, namespace: tuple[str, str], prompt: Sequence[int], shortest: int, rates: HitRates) -> None:
        self.namespace = namespace
        self.prompt = len(prompt)
        self.text = Occurrences(shortest)
        self.text.extend(prompt)
        self.rates = rates.of_sequence()


class SuffixDrafter:
    """Looks for the longest match of the last tokens, of `shortest` to `longest`, among the latest `occurrences`
    occurrences in the own text and in each part of the kept answers; of the places of that length, the latest `places`
    count. `kept`: the most tokens of earlier answers."""

    name = "suffix"

    def __init__(
        self,
        shortest: int = 2,
        longest: int = LONGEST,
        occurrences: int = 16,
        places: int = 8,
        kept: int = 200_000,
    ) -> None:
        assert shortest <= longest <= LONGEST, "longer matches are not told apart"
        self._shortest, self._longest, self._occurrences, self._places = shortest, longest, occurrences, places
        self._rates = HitRates(_PRIORS)
        self._sequences: dict[str, _Text] = {}
        self._answers = KeptAnswers(kept, shortest)

    def begin(
        self, sequence: str, namespace: tuple[str, str], prompt: Sequence[int], predicted: Sequence[int] = ()
    ) -> None:
        assert sequence not in self._sequences, "ids are unique"
        self._sequences[sequence] = _Text(namespace, prompt, self._shortest, self._rates)

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        known = self._sequences[sequence]
        known.rates.judge(tokens)
        known.text.extend(tokens)

    def guess(self, sequence: str, most: int) -> Guess:
        known = self._sequences[sequence]
        length, places = self._find(known)
        tokens, agreements = _walk(places, known.text.tokens, most)
        if not tokens:
            return NO_GUESS
        kinds = [
            kind * _AGREEMENTS + agreement
            for kind, agreement in zip(match_kinds(length, len(tokens)), agreements, strict=True)
        ]
        return Guess(tokens, known.rates.expect(tokens, kinds), self.name)

    def end(self, sequence: str, keep: bool) -> None:
        known = self._sequences.pop(sequence)
        if keep:
            self._answers.add(known.namespace, known.text.tokens[known.prompt :])

    def _find(self, known: _Text) -> tuple[int, list[tuple[list[int], int]]]:
        """The longest match, and the texts and positions that follow it: its own first, then the newest answers."""
        limits = (self._longest, self._occurrences, self._places)
        text = known.text.tokens
        best, after = known.text.earlier(*limits)
        places = [(text, at) for at in after]
        for index in self._answers.indices(known.namespace):
            length, after = index.after(text, *limits)
            if length > best:
                best, places = length, []
            if length and length == best:
                places += [(index.tokens, at) for at in after]
        return best, places[: self._places]


def _walk(places: list[tuple[list[int], int]], own: list[int], most: int) -> tuple[list[int], list[int]]:
    """Follow the most frequent token, of several the one of the first place. Returns the tokens, and how far the places
    agree on each. The own text goes on with the guess."""
    guess, agreements, whole, known = list[int](), list[int](), 1.0, len(own)
    while places and len(guess) < most:
        if len(places) == 1:
            guess += _copy(*places[0], known, guess, most)
            return guess, agreements + [_ALONE] * (len(guess) - len(agreements))
        tokens = [text[at] if at < len(text) else guess[at - known] for text, at in places]
        token = max(tokens, key=tokens.count)
        count = tokens.count(token)
        whole *= count / len(tokens)
        if token == GAP or whole < _LEAST:
            break
        guess.append(token)
        agreements.append(_agreement(count, len(tokens)))
        places = [(text, at + 1) for (text, at), found in zip(places, tokens, strict=True) if found == token]
    return guess, agreements


def _copy(text: list[int], at: int, known: int, guess: list[int], most: int) -> list[int]:
    """What follows a place, up to the end of its answer, so that `guess` gets `most` tokens. The own text goes on with
    the guess."""
    wanted = most - len(guess)
    found = text[at : at + wanted]
    if GAP in found:
        return found[: found.index(GAP)]
    if len(found) < wanted:
        after = guess + found
        while len(found) < wanted:
            found.append(after[at + len(found) - known])
            after.append(found[-1])
    return found


def _agreement(count: int, among: int) -> int:
    share = count / among
    return _UNANIMOUS if share == 1 else _MOST if share >= 0.75 else _HALF if share >= 0.5 else _FEW
