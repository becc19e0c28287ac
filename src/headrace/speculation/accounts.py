"""Two accounts of what speculation may lose: one for drafts of predictions, one for all others.

Whether a prediction is right says nothing about what else the engine drafts with, so neither pays for the other: a
drafter whose drafts have not been worth it does not keep a caller's prediction from being followed, nor the reverse.
Both share the times of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.speculation.drafter import Guess
from headrace.speculation.policy import DraftingTime, SpeculationPolicy, StepChoice, StepShape
from headrace.speculation.predicted import PredictedDrafter

__all__ = ["SpeculationAccounts"]


class SpeculationAccounts:
    """Asks the policy whose account a step's drafts belong to. Drafts of both kinds at once belong to the general one;
    if that admits none but predictions, these are judged alone. The account that has admitted a step's drafts pays."""

    def __init__(self, general: SpeculationPolicy) -> None:
        """`general`: the policy for all but predictions; its `gap` and `at_risk` count for both."""
        self._general, self._predictions = general, general.beside()

    def choose(
        self,
        shape: StepShape,
        guesses: Sequence[Guess],
        contexts: Sequence[int],
        drafting: DraftingTime | None = None,
    ) -> StepChoice:
        """As `SpeculationPolicy.choose`."""
        predicted = [guess.survival if _is_predicted(guess) else () for guess in guesses]
        if not any(predicted) or _others(guesses):
            survivals = [guess.survival for guess in guesses]
            choice = self._general.choose(shape, survivals, contexts, drafting)
            if not any(predicted) or _others(guesses, choice.drafts):
                return choice
        return replace(self._beside().choose(shape, predicted, contexts), predicted=True)

    def wanted(self, shape: StepShape, guesses: Sequence[Guess], drafting: DraftingTime | None = None) -> Sequence[int]:
        """As `SpeculationPolicy.wanted`."""
        predicted = [guess.survival if _is_predicted(guess) else () for guess in guesses]
        if not any(predicted) or _others(guesses):
            counts = self._general.wanted(shape, [guess.survival for guess in guesses], drafting)
            if not any(predicted) or _others(guesses, counts):
                return counts
        return self._beside().wanted(shape, predicted)

    def worth(self, shape: StepShape, guess: Guess, after: int) -> bool:
        """As `SpeculationPolicy.worth`, of the tokens of a guess after so many."""
        policy = self._beside() if _is_predicted(guess) else self._general
        return policy.worth(shape, guess.survival[after:])

    def settle(
        self, choice: StepChoice, emitted: int, seconds: float, drafting: float = 0.0, typical: bool = True
    ) -> float:
        """As `SpeculationPolicy.settle`, without what predictions have gained or lost: 0 for a step of theirs. Both
        accounts get the allowance of a step without drafts."""
        if choice.predicted and choice.total:
            self._beside().settle(choice, emitted, seconds, drafting, typical)
            return 0.0
        gained = self._general.settle(choice, emitted, seconds, drafting, typical)
        if not choice.total:
            # The general one has learnt the time.
            self._beside().settle(choice, emitted, seconds, typical=False)
        return gained

    def passed(self, seconds: float) -> None:
        """As `SpeculationPolicy.passed`, for both accounts."""
        self._general.passed(seconds)
        self._predictions.passed(seconds)

    def _beside(self) -> SpeculationPolicy:
        self._predictions.gap, self._predictions.at_risk = self._general.gap, self._general.at_risk
        return self._predictions


def _is_predicted(guess: Guess) -> bool:
    return guess.method == PredictedDrafter.name


def _others(guesses: Sequence[Guess], counts: Sequence[int] | None = None) -> bool:
    """Whether there are drafts that are no predictions; `counts`: of those that are admitted."""
    counts = [len(guess.survival) for guess in guesses] if counts is None else counts
    return any(count and not _is_predicted(guess) for guess, count in zip(guesses, counts, strict=True))
