"""Counts of drafted and accepted tokens for the metrics, and estimates for drafters that have none of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.speculation.hit_rates import HitRates, SequenceRates

__all__ = ["AcceptanceCounts", "PositionAcceptance"]

_FADE, _SHARED_FADE = 1 / 64, 1 / 1024
"""The share of what a sequence, and all together, have shown that one step without verification makes forget."""
_FIRST, _LATER = 0.6, 0.7
"""Priors: published draft heads are right about as often at their first token, and more often after a right one."""


@dataclass(slots=True)
class AcceptanceCounts:
    """Totals of one method since the start. A round is one verification of at least one drafted token."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)

    def add(self, drafted: int, accepted: int) -> None:
        """Count one round; without drafts there is none."""
        assert 0 <= accepted <= drafted, "only what was drafted can be accepted"
        if not drafted:
            return
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        for counts, count in ((self.drafted_by_position, drafted), (self.accepted_by_position, accepted)):
            counts.extend([0] * (drafted - len(counts)))
            for at in range(count):
                counts[at] += 1

    @property
    def mean_length(self) -> float:
        """Tokens that a round yields: the accepted ones and the one that the target samples after them."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    @property
    def rate(self) -> float:
        """The share of drafted tokens that were accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0


class PositionAcceptance:
    """Acceptance by position in the draft, of one method: for drafters whose guesses carry no evidence, such as a draft
    model. Sequences start from what all have shown so far. What is not verified is forgotten slowly, so that drafts
    which were of no use are tried again."""

    def __init__(self, most: int, priors: Sequence[float] | None = None) -> None:
        """`most`: the longest draft. `priors`: of each position, given that those before it were accepted."""
        self._rates = HitRates(priors or [_FIRST] + [_LATER] * (most - 1))
        self._sequences: dict[str, SequenceRates] = {}

    def begin(self, sequence: str) -> None:
        self._sequences[sequence] = self._rates.of_sequence()

    def end(self, sequence: str) -> None:
        del self._sequences[sequence]

    def survival(self, sequence: str, count: int) -> list[float]:
        """For each of `count` drafts, the probability that it and all before it are accepted."""
        return self._sequences[sequence].survival(range(count))

    def verified(self, sequence: str, drafted: int, accepted: int) -> None:
        """Learn from one round. What follows the first wrong token says nothing."""
        rates = self._sequences[sequence]
        for at in range(min(accepted + 1, drafted)):
            rates.observe(at, at < accepted)

    def skipped(self, sequence: str, steps: int = 1) -> None:
        """So many steps of this sequence went by without verification."""
        self._sequences[sequence].fade(1 - (1 - _FADE) ** steps)
        self._rates.fade(1 - (1 - _SHARED_FADE) ** steps)
