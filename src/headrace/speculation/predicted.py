"""Drafts from a predicted output: the text that a caller expects, such as a file of which little will change.

A place in the prediction moves along while the output agrees with it. At the first difference one token is taken to be
replaced, so the place moves on by one. If the next token differs too, the place is lost until the last tokens of the
output occur in the prediction again: then the longest match counts, of several the next one after the place where
output and prediction last agreed, or if there is none the last one before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from headrace.speculation.drafter import NO_GUESS, Guess
from headrace.speculation.hit_rates import HitRates
from headrace.speculation.match_lengths import LONGEST, match_kinds

__all__ = ["PredictedDrafter"]

_PRIORS = (0.35, 0.5, 0.65, 0.75, 0.82, 0.88, 0.92, 0.94, 0.96, 0.5)
"""By the number of tokens that agreed before, as in `match_lengths`; the last one is for the first token of all."""
_START = len(_PRIORS) - 1
_AHEAD, _BEHIND = 16, 4
"""The number of occurrences after and before the last place of agreement that are compared."""


class _Alignment:
    """A prediction and the place where the output stands in it."""

    __slots__ = ("_near", "_prediction", "_stops", "_tail", "place", "rates", "run")

    def __init__(self, prediction: Sequence[int], rates: HitRates) -> None:
        self._prediction = list(prediction)
        self._stops: dict[tuple[int, int], list[int]] = {}
        """The places after each pair of tokens, in order."""
        for at, pair in enumerate(zip(self._prediction, self._prediction[1:], strict=False), 2):
            self._stops.setdefault(pair, []).append(at)
        self._tail: list[int] = []
        self._near = 0
        self.place: int | None = 0
        """The next token's, if it is known."""
        self.run = 0
        """The number of tokens before the place that agree."""
        self.rates = rates.of_sequence()

    @property
    def started(self) -> bool:
        return bool(self._tail)

    def take(self, token: int) -> None:
        """Move on with a token of the output."""
        self._tail.append(token)
        if len(self._tail) > 2 * LONGEST:
            del self._tail[:-LONGEST]
        if self.place is not None and self._prediction[self.place : self.place + 1] == [token]:
            self._agree(self.place + 1, min(self.run + 1, LONGEST))
            return
        length, found = self._resume()
        if found is not None:
            self._agree(found, length)
        else:
            self.place = self.place + 1 if self.place is not None and self.run else None
            self.run = 0

    def ahead(self, most: int) -> list[int]:
        """What the prediction has at the place."""
        return [] if self.place is None else self._prediction[self.place : self.place + max(most, 0)]

    def _agree(self, place: int, run: int) -> None:
        self.place = self._near = place
        self.run = run

    def _resume(self) -> tuple[int, int | None]:
        """The best place after the last tokens of the output, and the length of the match before it."""
        stops = self._stops.get((self._tail[-2], self._tail[-1])) if len(self._tail) > 1 else None
        if stops is None:
            return 0, None
        split = bisect_left(stops, self._near)
        best, found = 0, None
        for stop in stops[split : split + _AHEAD] + stops[max(split - _BEHIND, 0) : split][::-1]:
            length = self._matching(stop)
            if length > best:
                best, found = length, stop
        return best, found

    def _matching(self, stop: int) -> int:
        """The number of tokens before `stop` that are the output's last ones."""
        length, limit, count = 2, min(LONGEST, stop, len(self._tail)), len(self._tail)
        while length < limit and self._prediction[stop - 1 - length] == self._tail[count - 1 - length]:
            length += 1
        return length


class PredictedDrafter:
    """Follows the predictions of the sequences that have one; guesses nothing for the others."""

    name = "predicted"

    def __init__(self) -> None:
        self._rates = HitRates(_PRIORS)
        self._sequences: dict[str, _Alignment | None] = {}

    def begin(
        self, sequence: str, namespace: tuple[str, str], prompt: Sequence[int], predicted: Sequence[int] = ()
    ) -> None:
        assert sequence not in self._sequences, "ids are unique"
        self._sequences[sequence] = _Alignment(predicted, self._rates) if predicted else None

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        known = self._sequences[sequence]
        if known is not None:
            known.rates.judge(tokens)
            for token in tokens:
                known.take(token)

    def guess(self, sequence: str, most: int) -> Guess:
        known = self._sequences[sequence]
        tokens = [] if known is None else known.ahead(most)
        if known is None or not tokens:
            return NO_GUESS
        kinds = match_kinds(known.run, len(tokens))
        if not known.started:
            kinds[0] = _START
        return Guess(tokens, known.rates.expect(tokens, kinds), self.name)

    def end(self, sequence: str, keep: bool) -> None:
        del self._sequences[sequence]
