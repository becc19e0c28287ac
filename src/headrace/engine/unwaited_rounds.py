"""Rounds that are launched between two steps and not waited for: what has failed in them, and the time that they take.

The device works on steps before them meanwhile, so neither the host's clock nor the device's counter tells how long
such a round takes. Some of them are waited for and measured, and the time of the others is foretold from these.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from headrace.engine.guarded_rounds import GuardedRounds
from headrace.platforms.interface import Pending
from headrace.speculation.model_speculator import ModelDrafts
from headrace.speculation.step_cost import StepCost

__all__ = ["UnwaitedRounds", "until_none"]

_MEASURED, _UNKNOWN = 64, 4
"""One round in so many is waited for and measured; the second: of those with passes whose times are not known."""


class UnwaitedRounds(GuardedRounds):
    """The base of `speculation.model_speculator.DraftingModel`s whose drafts the device may give to the next step."""

    def __init__(
        self,
        what: str,
        places: bool,
        busy_seconds: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`what`: the model, for the log. `places`: the device places sequences, whose rounds need not be waited for.
        `busy_seconds`: the device's counter of its working time."""
        super().__init__(what, busy_seconds, clock)
        self.cost = StepCost()
        self._places = places
        self._unread = deque[Sequence[Pending]]()
        """The results of rounds that nothing has waited for."""
        self._rounds = 0
        self._worked = 0.0
        """Seconds of the latest round in which the device works, whether it is waited for or not."""

    def _launched(self, count: int, work: Callable[[], ModelDrafts]) -> ModelDrafts:
        """`_guarded`, with the time of a round that nothing waits for. Raises DeviceLost."""
        busy, self._worked = self.busy, 0.0

        def checked() -> ModelDrafts:
            self._check_finished()
            return work()

        made = self._guarded(count, checked)
        if self._places:
            # What the device has worked meanwhile may be for steps in flight.
            self.busy = busy + self._worked
        return made

    def _begin_anew(self) -> None:
        self._unread.clear()

    def _leave(self, pending: Sequence[Pending], passes: Sequence[tuple[int, int]]) -> float:
        """Don't wait for a round. `passes`: the tokens of each, and what they attend to in total. Returns its seconds,
        as far as they are known."""
        self._unread.append(pending)
        seconds = sum(self.cost.seconds(tokens, context) for tokens, context in passes)
        self.unwaited += seconds
        return seconds

    def _count(self, seconds: float, waited: bool) -> None:
        """Without a counter, the time of a step is that since the end of the one before it or since its launch, which
        comes after what is waited for."""
        if self._busy_seconds is not None or not waited:
            self._worked += seconds

    def _measures(self, sizes: Sequence[int]) -> bool:
        """Whether to wait for a round that need not be waited for, because the times of its passes must be known.
        `sizes`: their numbers of tokens."""
        self._rounds += 1
        known = all(map(self.cost.known, sizes))
        return self._rounds % (_MEASURED if known else _UNKNOWN) == 0

    def _check_finished(self) -> None:
        """Raises what has failed in a round that nothing waited for."""
        while self._unread and all(result.done() for result in self._unread[0]):
            for result in self._unread.popleft():
                result.result()


def until_none(tokens: list[int]) -> list[int]:
    """The drafts before the first row that had none to choose."""
    return next((tokens[:at] for at, token in enumerate(tokens) if token < 0), tokens)
