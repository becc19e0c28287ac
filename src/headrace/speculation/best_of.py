"""Several drafters as one: the guess counts of which most tokens are expected to be accepted."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.speculation.drafter import NO_GUESS, Guess, HostDrafter

__all__ = ["BestOf"]


class BestOf:
    """Asks all drafters; of equal guesses, the first drafter's counts."""

    def __init__(self, name: str, drafters: Sequence[HostDrafter]) -> None:
        self.name = name
        self._drafters = tuple(drafters)

    def begin(
        self, sequence: str, namespace: tuple[str, str], prompt: Sequence[int], predicted: Sequence[int] = ()
    ) -> None:
        for drafter in self._drafters:
            drafter.begin(sequence, namespace, prompt, predicted)

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.extend(sequence, tokens)

    def guess(self, sequence: str, most: int) -> Guess:
        best, expected = NO_GUESS, 0.0
        for drafter in self._drafters:
            found = drafter.guess(sequence, most)
            value = sum(found.survival)
            if value > expected:
                best, expected = found, value
        return best

    def end(self, sequence: str, keep: bool) -> None:
        for drafter in self._drafters:
            drafter.end(sequence, keep)
