"""Connects the scheduler with a drafter: a `core.drafts.DraftSource` over a speculator."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, Protocol

from headrace.core.drafts import DraftRow, StepSize
from headrace.engine.launch_times import LaunchTimes
from headrace.engine.stats import MethodTotals, SpeculationTotals
from headrace.platforms.interface import TimesLaunches
from headrace.speculation.model_speculator import ModelSpeculator
from headrace.speculation.policy import StepShape
from headrace.speculation.speculator import DraftRow as SpeculatorRow
from headrace.speculation.speculator import Drafts, Speculator
from headrace.types import Request, StepPlan

__all__ = ["Drafting", "RoundModel"]

_GAPS, _ENOUGH_GAPS = 9, 5
"""Latest waits for drafts that are kept; the number from which on their median counts, and not the shortest."""


class RoundModel(Protocol):
    """The members of a model that drafts which the engine uses."""

    wall: float
    """Seconds that all rounds together have taken."""
    busy: float
    """Those in which the device worked on them."""
    unwaited: float
    """Seconds of rounds that nothing waited for."""

    def begin(self, request: Request) -> None:
        """Take up a sequence."""

    def place(self, row: DraftRow) -> None:
        """Tell the place of a sequence on the device, before a round."""

    def learn_times(self) -> None:
        """Learn the times of rounds that the device has done."""


class _Drafted(NamedTuple):
    """A step with drafts that is not settled."""

    drafts: Drafts
    accepted: Sequence[int | None]
    busy: float
    """Seconds in which the device worked on the drafts, as far as they could be foretold."""
    shape: StepShape
    marks: tuple[int | None, int | None]
    """Points of the device before and behind what was launched for them."""


class _Stopwatch:
    """Adds up the seconds within its `with` blocks; far cheaper than a generator's context."""

    __slots__ = ("_clock", "_start", "seconds")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.seconds = self._start = 0.0

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *error: object) -> None:
        self.seconds += self._clock() - self._start


class Drafting:
    """The drafts of one engine, and what was learnt from the steps that verified them."""

    def __init__(
        self,
        speculator: Speculator | ModelSpeculator,
        predicted_only: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        model: RoundModel | None = None,
        on_device: bool = False,
        times: TimesLaunches | None = None,
    ) -> None:
        """`predicted_only`: sequences have drafts only if their request predicts the output. `model`: the one that
        drafts, if any. `on_device`: the device makes the drafts of requests that predict nothing, by the method of the
        speculator's drafter or with the head that is `model`. `times`: tells the device's time of each launch."""
        self._speculator, self._predicted_only, self._model = speculator, predicted_only, model
        self._on_device, self._times = on_device, LaunchTimes(times)
        self._gaps = deque[float](maxlen=_GAPS)
        """Seconds that the device stands still if a step must wait for the commit of the one before it."""
        self._watch = _Stopwatch(clock)
        self._unread: dict[str, Request] = {}
        """Sequences without output: their prompts are read with the first token, so that those which wait for a place
        take no memory of the drafter."""
        self._steps: dict[int, _Drafted] = {}
        self._drafting = 0.0
        """Seconds that the model has taken for the drafts of the latest step."""
        self._latest = 0
        """The latest step that was drafted."""
        self._passed = 0.0
        """The device's seconds for steps that were not, as far as they have been settled since."""

    def totals(self) -> SpeculationTotals:
        """Totals since the start, of the steps that are settled."""
        counts = sorted(self._speculator.counts.items())
        methods = [
            MethodTotals(name, one.rounds, tuple(one.drafted_by_position), tuple(one.accepted_by_position))
            for name, one in counts
        ]
        unwaited = 0.0 if self._model is None else self._model.unwaited
        return SpeculationTotals(self._watch.seconds + unwaited, tuple(methods))

    def begin(self, request: Request) -> bool:
        if self._predicted_only and not request.predicted:
            return False
        self._unread[request.id] = request
        return True

    def places(self, request: Request) -> bool:
        return self._on_device and not request.predicted and not request.predicted_only

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int) -> None:
        with self._watch:
            if (new := self._unread.pop(sequence, None)) is not None:
                if self._model is not None:
                    self._model.begin(new)
                namespace = (new.adapter, new.salt)
                self._speculator.begin(sequence, namespace, new.prompt, new.predicted, new.predicted_only)
            self._speculator.policy.gap = 0.0 if self._on_device else self._gap
            self._speculator.extend(sequence, tokens, in_flight)

    def pause(self, sequence: str, keep: bool) -> None:
        if sequence not in self._unread:
            with self._watch:
                self._speculator.pause(sequence, keep)

    def end(self, sequence: str, keep: bool) -> None:
        if self._unread.pop(sequence, None) is None:
            with self._watch:
                self._speculator.end(sequence, keep)

    def held(self, sequence: str) -> bool:
        with self._watch:
            return sequence not in self._unread and self._speculator.held(sequence)

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> Sequence[list[int]]:
        wall, busy = self._spent()
        before = self._times.mark()
        # Only a sequence whose drafts are made here has to wait for its last token.
        waits = not self._on_device or any(row.ahead is None for row in rows)
        self._speculator.policy.gap = self._gap if waits else 0.0
        with self._watch:
            if step > self._latest + 1:
                self._speculator.passed(step - self._latest - 1, self._passed)
                self._passed = 0.0
            self._latest = step
            if self._model is not None:
                for row in rows:
                    self._model.place(row)
            drafts = self._speculator.draft(
                StepShape(*size), [SpeculatorRow(row.sequence, row.most, row.context, row.ahead) for row in rows]
            )
        after = self._spent()
        self._drafting = after[0] - wall
        marks = (None, None) if waits or self._model is None else (before, self._times.mark())
        self._steps[step] = _Drafted(drafts, [None] * len(rows), after[1] - busy, StepShape(*size), marks)
        self._count_risk()
        return drafts.tokens

    def rest(self) -> int:
        return self._speculator.rest()

    def verified(self, step: int, accepted: Sequence[int | None], made: Sequence[int]) -> None:
        if (found := self._steps.get(step)) is not None:
            tokens = [one[:count] for one, count in zip(found.drafts.tokens, made, strict=True)]
            self._steps[step] = found._replace(drafts=found.drafts._replace(tokens=tokens), accepted=accepted)

    def settle(self, plan: StepPlan, emitted: int, seconds: float) -> None:
        """Learn from a step: its new tokens, and the time that the device took for it since the step before it, which
        includes that of its drafts. Steps before it that failed are forgotten."""
        found = self._steps.pop(plan.step, None)
        for old in [one for one in self._steps if one < plan.step]:
            del self._steps[old]
        self._count_risk()
        if self._model is not None:
            self._model.learn_times()
        following = self._steps.get(plan.step + 1)
        # The host has made the next step's drafts meanwhile, which takes processor time from some devices.
        disturbed = following is not None and following.drafts.choice.total > 0
        if found is not None:
            drafts, busy = self._timed(found)
            disturbed = disturbed and not drafts.choice.total
            # What is only foretold of a round may be longer than the time in which it ran.
            left = max(0.0, seconds - busy)
            self._speculator.settle(drafts._replace(disturbed=disturbed), found.accepted, emitted, left)
            if disturbed:
                self._speculator.policy.delayed(found.shape, left)
            return
        self._passed += seconds
        if plan.num_tokens == plan.num_seqs and not self._predicted_only:
            # A step that decodes; those with prompts are learnt when they are chosen.
            context = int(plan.context_lens.sum())
            if disturbed:
                self._speculator.policy.delayed(StepShape(plan.num_tokens, plan.num_tokens, context), seconds)
            else:
                self._speculator.policy.cost.observe(plan.num_tokens, context, seconds, reference=True)

    def _count_risk(self) -> None:
        """Tell the policy what the steps that are not settled may lose, whenever these have changed."""
        self._speculator.policy.at_risk = sum(step.drafts.choice.at_risk for step in self._steps.values())

    def _timed(self, found: _Drafted) -> tuple[Drafts, float]:
        """The drafts of a step with the time that the device took to make them, and its seconds in which it worked on
        them."""
        start, end = (self._times.busy_until(mark) for mark in found.marks)
        if start is None or end is None:
            return found.drafts, found.busy
        return found.drafts._replace(seconds=max(0.0, end - start - found.drafts.caught_up)), end - start

    def waited(self, seconds: float) -> None:
        """Learn for how long the device stands still between a step with drafts and the next. The time that the model
        drafts in between counts apart."""
        seconds = max(0.0, seconds - self._drafting)
        self._gaps.append(seconds)

    @property
    def _gap(self) -> float:
        """The usual one of the latest. A launch that compiles first takes seconds, and must not count: the policy would
        find drafts dear, and without drafts nothing is measured again."""
        return median(self._gaps) if len(self._gaps) >= _ENOUGH_GAPS else min(self._gaps, default=0.0)

    def _spent(self) -> tuple[float, float]:
        return (0.0, 0.0) if self._model is None else (self._model.wall, self._model.busy)
