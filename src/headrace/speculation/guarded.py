"""A drafter whose faults end its drafts and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headrace.speculation.drafter import NO_GUESS, Guess, HostDrafter

__all__ = ["GuardedDrafter"]

_log = logging.getLogger(__name__)


class GuardedDrafter:
    """Passes calls on until one of them raises. From then on it guesses nothing, since the drafter's state may be
    wrong: answers stay the same, and the log has the error."""

    def __init__(self, drafter: HostDrafter) -> None:
        self.name = drafter.name
        self._drafter: HostDrafter | None = drafter

    def begin(
        self, sequence: str, namespace: tuple[str, str], prompt: Sequence[int], predicted: Sequence[int] = ()
    ) -> None:
        try:
            if self._drafter is not None:
                self._drafter.begin(sequence, namespace, prompt, predicted)
        except Exception:
            self._give_up()

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        try:
            if self._drafter is not None:
                self._drafter.extend(sequence, tokens)
        except Exception:
            self._give_up()

    def guess(self, sequence: str, most: int) -> Guess:
        try:
            found = NO_GUESS if self._drafter is None else self._drafter.guess(sequence, most)
            # What the policy and the scheduler rely on.
            if len(found.tokens) <= most and len(found.tokens) == len(found.survival):
                return found
            raise ValueError(f"{len(found.tokens)} tokens and {len(found.survival)} rates, but {most} were asked for")
        except Exception:
            self._give_up()
            return NO_GUESS

    def end(self, sequence: str, keep: bool) -> None:
        try:
            if self._drafter is not None:
                self._drafter.end(sequence, keep)
        except Exception:
            self._give_up()

    def _give_up(self) -> None:
        self._drafter = None
        _log.exception("the drafter %s failed: nothing is speculated from now on", self.name)
