"""Connects the scheduler with a drafter: a `core.drafts.DraftSource` over a speculator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.core.drafts import DraftRow, StepSize
from headrace.engine.draft_model import DraftModel
from headrace.engine.stats import MethodTotals, SpeculationTotals
from headrace.speculation.model_speculator import ModelSpeculator
from headrace.speculation.policy import StepShape
from headrace.speculation.speculator import DraftRow as SpeculatorRow
from headrace.speculation.speculator import Drafts, Speculator
from headrace.types import Request

__all__ = ["Drafting"]


class _Drafted(NamedTuple):
    """A step with drafts that is not settled."""

    drafts: Drafts
    accepted: Sequence[int | None]
    busy: float
    """Seconds in which the device worked on the drafts."""


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
        model: DraftModel | None = None,
    ) -> None:
        """`predicted_only`: sequences have drafts only if their request predicts the output. `model`: the one that
        drafts, if any."""
        self._speculator, self._predicted_only, self._model = speculator, predicted_only, model
        self._watch = _Stopwatch(clock)
        self._unread: dict[str, Request] = {}
        """Sequences without output: their prompts are read with the first token, so that those which wait for a place
        take no memory of the drafter."""
        self._steps: dict[int, _Drafted] = {}
        self._drafting = 0.0
        """Seconds that the model has taken for the drafts of the latest step."""

    def totals(self) -> SpeculationTotals:
        """Totals since the start, of the steps that are settled."""
        counts = sorted(self._speculator.counts.items())
        methods = [
            MethodTotals(name, one.rounds, tuple(one.drafted_by_position), tuple(one.accepted_by_position))
            for name, one in counts
        ]
        return SpeculationTotals(self._watch.seconds, tuple(methods))

    def begin(self, request: Request) -> bool:
        if self._predicted_only and not request.predicted:
            return False
        self._unread[request.id] = request
        return True

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int) -> None:
        with self._watch:
            if (new := self._unread.pop(sequence, None)) is not None:
                if self._model is not None:
                    self._model.begin(new)
                namespace = (new.adapter, new.salt)
                self._speculator.begin(sequence, namespace, new.prompt, new.predicted, new.predicted_only)
            self._speculator.extend(sequence, tokens, in_flight)

    def end(self, sequence: str, keep: bool) -> None:
        if self._unread.pop(sequence, None) is None:
            with self._watch:
                self._speculator.end(sequence, keep)

    def held(self, sequence: str) -> bool:
        return sequence not in self._unread and self._speculator.held(sequence)

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> Sequence[list[int]]:
        wall, busy = self._spent()
        with self._watch:
            drafts = self._speculator.draft(
                StepShape(*size), [SpeculatorRow(row.sequence, row.most, row.context) for row in rows]
            )
        after = self._spent()
        self._drafting = after[0] - wall
        self._steps[step] = _Drafted(drafts, [None] * len(rows), after[1] - busy)
        return drafts.tokens

    def verified(self, step: int, accepted: Sequence[int | None]) -> None:
        if step in self._steps:
            self._steps[step] = self._steps[step]._replace(accepted=accepted)

    def settle(self, step: int, emitted: int, seconds: float) -> None:
        """Learn from a step: its new tokens, and the time that the device took for it since the step before it, which
        includes that of its drafts. Steps before it that failed are forgotten."""
        found = self._steps.pop(step, None)
        for old in [one for one in self._steps if one < step]:
            del self._steps[old]
        if found is not None:
            self._speculator.settle(found.drafts, found.accepted, emitted, seconds - found.busy)

    def waited(self, seconds: float) -> None:
        """Learn for how long the device stands still between a step with drafts and the next. The time that the model
        drafts in between counts apart."""
        policy, seconds = self._speculator.policy, max(0.0, seconds - self._drafting)
        policy.gap = seconds if policy.gap == 0 else 0.9 * policy.gap + 0.1 * seconds

    def _spent(self) -> tuple[float, float]:
        return (0.0, 0.0) if self._model is None else (self._model.wall, self._model.busy)
