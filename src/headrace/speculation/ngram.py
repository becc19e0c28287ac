"""Drafts from a sequence's own text: what followed the last time that its last tokens occurred (prompt lookup)."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.speculation.drafter import NO_GUESS, Guess
from headrace.speculation.hit_rates import HitRates
from headrace.speculation.match_lengths import LONGEST, MATCH_PRIORS, match_kinds
from headrace.speculation.occurrences import Occurrences

__all__ = ["NgramDrafter"]


class _Text:
    """One sequence: its prompt and output so far."""

    __slots__ = ("rates", "text")

    def __init__(self, shortest: int, rates: HitRates) -> None:
        self.text = Occurrences(shortest)
        self.rates = rates.of_sequence()


class NgramDrafter:
    """Continues the longest match of the last tokens with earlier ones, of `shortest` (1 to 3) to `longest` (at most
    32) tokens, as far as the latest `occurrences` occurrences of the last `shortest` tokens tell; of several matches of
    that length, the latest."""

    name = "ngram"

    def __init__(self, shortest: int = 2, longest: int = LONGEST, occurrences: int = 32) -> None:
        assert shortest <= longest <= LONGEST, "longer matches are not told apart"
        self._shortest, self._longest, self._occurrences = shortest, longest, occurrences
        self._rates = HitRates(MATCH_PRIORS)
        self._sequences: dict[str, _Text] = {}

    def begin(
        self, sequence: str, namespace: tuple[str, str], prompt: Sequence[int], predicted: Sequence[int] = ()
    ) -> None:
        assert sequence not in self._sequences, "ids are unique"
        started = self._sequences[sequence] = _Text(self._shortest, self._rates)
        started.text.extend(prompt)

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        known = self._sequences[sequence]
        known.rates.judge(tokens)
        known.text.extend(tokens)

    def guess(self, sequence: str, most: int) -> Guess:
        known = self._sequences[sequence]
        length, after = known.text.earlier(self._longest, self._occurrences, 1)
        if not length or most < 1:
            return NO_GUESS
        tokens = known.text.copy(after[0], most)
        return Guess(tokens, known.rates.expect(tokens, match_kinds(length, len(tokens))), self.name)

    def end(self, sequence: str, keep: bool) -> None:
        del self._sequences[sequence]
