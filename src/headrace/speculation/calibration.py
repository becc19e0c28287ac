"""Corrects a drafter's own estimates of its acceptance by what is accepted.

An estimate was trained on other texts, and at another temperature, than those that are served. So its log-odds get a
bias per position in the draft, learnt online as in a logistic regression: where the drafter was too sure, the bias
falls. Only positions whose predecessors were all accepted say anything, as for `acceptance.PositionAcceptance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["Calibration"]

_FAST, _SLOW = 0.5, 0.02
"""The rate of learning at first, and at least."""
_FADE = 1 / 256
"""The share of a correction that a block of which nothing was verified makes forget."""
_MOST = 12.0
"""The largest log-odds, so that nothing is certain."""


class Calibration:
    """The correction of one method, whose drafts are no longer than `most`."""

    def __init__(self, most: int) -> None:
        self._biases, self._seen = [0.0] * most, [0] * most

    def corrected(self, survival: Sequence[float]) -> list[float]:
        """Of estimates that each token and all before it are accepted; they still fall."""
        found, product = list[float](), 1.0
        for at, odds in enumerate(_log_odds(survival)):
            product *= _chance(odds + self._biases[at])
            found.append(product)
        return found

    def verified(self, survival: Sequence[float], drafted: int, accepted: int) -> None:
        """Learn from one round: the estimates before correction, and how many of the tokens were accepted."""
        for at, odds in enumerate(_log_odds(survival[: min(accepted + 1, drafted)])):
            rate = max(_SLOW, _FAST / math.sqrt(1 + self._seen[at]))
            self._biases[at] += rate * ((at < accepted) - _chance(odds + self._biases[at]))
            self._seen[at] += 1

    def skipped(self) -> None:
        """Nothing of a block was verified: what keeps it from being tried is forgotten slowly."""
        self._biases = [(1 - _FADE) * bias for bias in self._biases]


def _log_odds(survival: Sequence[float]) -> list[float]:
    """Of each token, given that those before it are accepted."""
    found, before = list[float](), 1.0
    for each in survival:
        share = each / before if before > 0 else 0.0
        least = _chance(-_MOST)
        share = min(max(share, least), 1 - least)
        found.append(math.log(share / (1 - share)))
        before = each
    return found


def _chance(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))
