"""Two accounts of what speculation may lose: one for drafts of predictions, one for all others.

Whether a prediction is right says nothing about what else the engine drafts with, so neither pays for the other: a
drafter whose drafts have not been worth it does not keep a caller's prediction from being followed, nor the reverse.
Both share the times of steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.speculation.drafter import Guess
from headrace.speculation.policy import DraftingTime, SpeculationPolicy, StepChoice, StepShape
from headrace.speculation.predicted import PredictedDrafter

__all__ = ["SpeculationAccounts"]


class SpeculationAccounts:
    """Asks the policy whose account a step's drafts belong to. Drafts of both kinds at once belong to the general one;
    if that admits none, the predictions are judged alone."""

    def __init__(self, general: SpeculationPolicy) -> None:
        """`general`: the policy for all but predictions; its `gap` counts for both."""
        self._general, self._predictions = general, general.beside()

    def choose(
        self,
        shape: StepShape,
        guesses: Sequence[Guess],
        contexts: Sequence[int],
        drafting: DraftingTime | None = None,
    ) -> StepChoice:
        """As `SpeculationPolicy.choose`."""
        predicted = _predicted(guesses)
        if not any(predicted) or any(_others(guesses)):
            survivals = [guess.survival for guess in guesses]
            choice = self._general.choose(shape, survivals, contexts, drafting)
            if choice.total or not any(predicted):
                return choice
        return self._beside().choose(shape, predicted, contexts)

    def wanted(self, shape: StepShape, guesses: Sequence[Guess], drafting: DraftingTime | None = None) -> Sequence[int]:
        """As `SpeculationPolicy.wanted`."""
        predicted = _predicted(guesses)
        if not any(predicted) or any(_others(guesses)):
            counts = self._general.wanted(shape, [guess.survival for guess in guesses], drafting)
            if any(counts) or not any(predicted):
                return counts
        return self._beside().wanted(shape, predicted)

    def worth(self, shape: StepShape, guess: Guess, after: int) -> bool:
        """As `SpeculationPolicy.worth`, of the tokens of a guess after so many."""
        policy = self._beside() if guess.method == PredictedDrafter.name else self._general
        return policy.worth(shape, guess.survival[after:])

    def settle(
        self,
        choice: StepChoice,
        methods: Sequence[str],
        emitted: int,
        seconds: float,
        drafting: float = 0.0,
        whole: bool = True,
    ) -> float:
        """As `SpeculationPolicy.settle`. `methods`: by row. Both accounts get the allowance of a step without
        drafts."""
        drafted = {method for method, count in zip(methods, choice.drafts, strict=True) if count}
        if drafted == {PredictedDrafter.name} and not drafting:
            return self._beside().settle(choice, emitted, seconds, whole=whole)
        gained = self._general.settle(choice, emitted, seconds, drafting, whole)
        if not drafted:
            # The general one has learnt the time.
            self._beside().settle(choice, emitted, seconds, whole=False)
        return gained

    def _beside(self) -> SpeculationPolicy:
        self._predictions.gap = self._general.gap
        return self._predictions


def _predicted(guesses: Sequence[Guess]) -> list[Sequence[float]]:
    return [guess.survival if guess.method == PredictedDrafter.name else () for guess in guesses]


def _others(guesses: Sequence[Guess]) -> list[Sequence[float]]:
    return [() if guess.method == PredictedDrafter.name else guess.survival for guess in guesses]
