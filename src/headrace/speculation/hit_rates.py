"""How often guesses are right, by the evidence that they are made on.

A drafter sorts its guesses into kinds (by the length of a match, or by the position in a draft). For each kind, all
sequences together learn a rate, which starts from a prior; and each sequence has rates of its own, which start from
the common ones. Old observations fade, so that a sequence that begins to repeat itself is noticed within some tokens.

A rate is that of a token whose predecessors in the guess were all right. So the probability that a whole guess survives
is the product of its tokens' rates.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["HitRates", "SequenceRates"]

_PRIOR = 8.0
"""The number of observations that the prior counts as."""
_SHARED_WINDOW = 512.0
"""The number of observations after which all sequences' older ones have faded to a third."""
_OWN_WINDOW = 32.0
_SHARED = 6.0
"""The number of observations of a sequence that the common rate counts as."""


class HitRates:
    """The rates that all sequences of a drafter share; one per kind, with the priors given."""

    def __init__(self, priors: Sequence[float]) -> None:
        assert all(0 < prior < 1 for prior in priors), "a prior is a probability that can change"
        self._priors = tuple(priors)
        self._hits = [prior * _PRIOR for prior in priors]
        self._trials = [_PRIOR] * len(priors)

    def __len__(self) -> int:
        return len(self._hits)

    def rate(self, kind: int) -> float:
        return self._hits[kind] / self._trials[kind]

    def of_sequence(self) -> SequenceRates:
        """The rates of a new sequence."""
        return SequenceRates(self)

    def observe(self, kind: int, hit: bool) -> None:
        """Count one guess."""
        fade = 1 - 1 / _SHARED_WINDOW if self._trials[kind] > _SHARED_WINDOW else 1.0
        self._hits[kind] = self._hits[kind] * fade + hit
        self._trials[kind] = self._trials[kind] * fade + 1

    def fade(self, share: float) -> None:
        """Forget this share of everything, in favour of the priors."""
        for kind, prior in enumerate(self._priors):
            self._hits[kind] += share * (prior * _PRIOR - self._hits[kind])
            self._trials[kind] += share * (_PRIOR - self._trials[kind])


class SequenceRates:
    """The rates of one sequence, and the guess that its next tokens will judge."""

    def __init__(self, shared: HitRates) -> None:
        self._shared = shared
        self._hits = [0.0] * len(shared)
        self._trials = [0.0] * len(shared)
        self._guess: Sequence[int] = ()
        self._kinds: Sequence[int] = ()
        self._at = 0

    def rate(self, kind: int) -> float:
        """The probability that a guess of this kind is right."""
        return (self._hits[kind] + _SHARED * self._shared.rate(kind)) / (self._trials[kind] + _SHARED)

    def survival(self, kinds: Sequence[int]) -> list[float]:
        """The probability that a guess is right up to each of its tokens, which are of these kinds."""
        found, whole, last, rate = list[float](), 1.0, -1, 1.0
        for kind in kinds:
            if kind != last:
                rate, last = self.rate(kind), kind
            whole *= rate
            found.append(whole)
        return found

    def expect(self, guess: Sequence[int], kinds: Sequence[int]) -> list[float]:
        """Let the next tokens judge this guess, in place of the guess before it. Returns its survival."""
        self._guess, self._kinds, self._at = guess, kinds, 0
        return self.survival(kinds)

    def judge(self, tokens: Sequence[int]) -> None:
        """Compare the guess with the tokens that came, up to its first wrong token."""
        for token in tokens:
            if self._at >= len(self._guess):
                return
            hit, kind = self._guess[self._at] == token, self._kinds[self._at]
            self._at += 1
            self.observe(kind, hit)
            if not hit:
                self._guess = ()

    def fade(self, share: float) -> None:
        """Forget this share of everything, in favour of the common rates."""
        self._hits = [(1 - share) * hits for hits in self._hits]
        self._trials = [(1 - share) * trials for trials in self._trials]

    def observe(self, kind: int, hit: bool) -> None:
        """Count one guess of this sequence, for all sequences too."""
        fade = 1 - 1 / _OWN_WINDOW
        self._hits[kind] = self._hits[kind] * fade + hit
        self._trials[kind] = self._trials[kind] * fade + 1
        self._shared.observe(kind, hit)
