"""Rounds that are launched between two steps and not waited for: what has failed in them, and the time that they take.

The device works on steps before them meanwhile, so the host's clock does not tell how long such a round takes. Some
devices know the time of each launch (`TimesLaunches`); it is learnt once they are done. For others some of the rounds
are waited for and measured, and the time of the others is foretold from these.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.engine.guarded_rounds import GuardedRounds
from headrace.engine.launch_times import LaunchTimes
from headrace.platforms.interface import Pending, TimesLaunches
from headrace.speculation.model_speculator import ModelDrafts
from headrace.speculation.step_cost import StepCost

__all__ = ["UnwaitedRounds", "until_none"]

_MOST_BROKEN = 64
"""Rounds in flight at failed steps whose times are still asked for: a device may have lost those of some."""
_MEASURED, _UNKNOWN = 64, 4
"""One round in so many is waited for and measured; the second: of those with passes whose times are not known."""


@dataclass(slots=True)
class _Unread:
    """A round that nothing has waited for."""

    results: Sequence[Pending]
    passes: Sequence[tuple[int, int]]
    marks: Sequence[int]
    """Points of the device before the first pass and behind each, until the times are learnt."""


class UnwaitedRounds(GuardedRounds):
    """The base of `speculation.model_speculator.DraftingModel`s whose drafts the device may give to the next step."""

    def __init__(
        self,
        what: str,
        places: bool,
        busy_seconds: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        times: TimesLaunches | None = None,
    ) -> None:
        """`what`: the model, for the log. `places`: the device places sequences, whose rounds need not be waited for.
        `busy_seconds`: the device's counter of its working time; `times`: tells that of each launch."""
        super().__init__(what, busy_seconds, clock)
        self._times = LaunchTimes(times)
        self.cost = StepCost()
        self._places = places
        self._unread = deque[_Unread]()
        self._broken = deque[_Unread](maxlen=_MOST_BROKEN)
        """Rounds that were in flight when a step failed: the device's seconds count, whatever they have computed."""
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
        self.learn_times()
        self._broken.extend(one for one in self._unread if one.marks)
        self._unread.clear()

    def _leave(
        self, pending: Sequence[Pending], passes: Sequence[tuple[int, int]], marks: Sequence[int | None]
    ) -> float:
        """Don't wait for a round. `passes`: the tokens of each, and what they attend to in total. `marks`: those before
        the first pass and behind each. Returns its seconds, as far as they can be foretold."""
        self._unread.append(_Unread(pending, passes, [mark for mark in marks if mark is not None]))
        seconds = sum(self.cost.seconds(tokens, context) for tokens, context in passes)
        if not self._times.known:
            self.unwaited += seconds
        return seconds

    def learn_times(self) -> None:
        """Learn the times of rounds that are done. They count instead of those of `warm_up`, when nothing else was in
        the device's caches."""
        for one in self._unread:
            self._learn(one)
        for _ in range(len(self._broken)):
            one = self._broken.popleft()
            self._learn(one, sound=False)
            if one.marks:
                self._broken.append(one)

    def _learn(self, one: _Unread, sound: bool = True) -> None:
        """`sound`: nothing has failed in it, so that later rounds will take as long."""
        if not one.marks:
            return
        ends = [self._times.busy_until(mark) for mark in one.marks]
        if ends[-1] is None:
            # It is not done, or was too long ago.
            return
        for (tokens, context), start, end in zip(one.passes, ends, ends[1:], strict=False):
            if start is not None and end is not None:
                if sound:
                    self.cost.observe(tokens, context, end - start)
                self.unwaited += end - start
        one.marks = ()

    def _count(self, seconds: float, waited: bool) -> None:
        """Without a counter, the time of a step is that since the end of the one before it or since its launch, which
        comes after what is waited for."""
        if self._busy_seconds is not None or not waited:
            self._worked += seconds

    def _measures(self, sizes: Sequence[int]) -> bool:
        """Whether to wait for a round that need not be waited for, because the times of its passes must be known.
        `sizes`: their numbers of tokens."""
        if self._times.known:
            return False
        self._rounds += 1
        known = all(map(self.cost.known, sizes))
        return self._rounds % (_MEASURED if known else _UNKNOWN) == 0

    def _check_finished(self) -> None:
        """Raises what has failed in a round that nothing waited for."""
        self.learn_times()
        while self._unread and all(result.done() for result in self._unread[0].results):
            # It may have come to its end just now.
            self._learn(self._unread[0])
            for result in self._unread.popleft().results:
                result.result()


def until_none(tokens: list[int]) -> list[int]:
    """The drafts before the first row that had none to choose."""
    return next((tokens[:at] for at, token in enumerate(tokens) if token < 0), tokens)
