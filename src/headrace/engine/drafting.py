"""Connects the scheduler with a drafter: a `core.drafts.DraftSource` over a `speculation.Speculator`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.core.drafts import DraftRow, StepSize
from headrace.speculation.acceptance import AcceptanceCounts
from headrace.speculation.policy import StepShape
from headrace.speculation.speculator import DraftRow as SpeculatorRow
from headrace.speculation.speculator import Drafts, Speculator
from headrace.types import Request

__all__ = ["Drafting"]


class Drafting:
    """The drafts of one engine, and what was learnt from the steps that verified them."""

    def __init__(self, speculator: Speculator, predicted_only: bool = False) -> None:
        """`predicted_only`: sequences have drafts only if their request predicts the output."""
        self._speculator, self._predicted_only = speculator, predicted_only
        self._steps: dict[int, tuple[Drafts, Sequence[int | None]]] = {}
        """Steps with drafts that are not settled, with what was accepted."""

    @property
    def counts(self) -> Mapping[str, AcceptanceCounts]:
        """Totals by method."""
        return self._speculator.counts

    def begin(self, request: Request) -> bool:
        if self._predicted_only and not request.predicted:
            return False
        namespace = (request.adapter, request.salt)
        self._speculator.begin(request.id, namespace, request.prompt, request.predicted)
        return True

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int) -> None:
        self._speculator.extend(sequence, tokens, in_flight)

    def end(self, sequence: str, keep: bool) -> None:
        self._speculator.end(sequence, keep)

    def held(self, sequence: str) -> bool:
        return self._speculator.held(sequence)

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> Sequence[list[int]]:
        drafts = self._speculator.draft(StepShape(*size), [SpeculatorRow(*row) for row in rows])
        self._steps[step] = drafts, [None] * len(rows)
        return drafts.tokens

    def verified(self, step: int, accepted: Sequence[int | None]) -> None:
        if step in self._steps:
            self._steps[step] = self._steps[step][0], accepted

    def settle(self, step: int, emitted: int, seconds: float) -> None:
        """Learn from a step: its new tokens, and the time that the device took for it. Steps before it that failed are
        forgotten."""
        found = self._steps.pop(step, None)
        for old in [one for one in self._steps if one < step]:
            del self._steps[old]
        if found is not None:
            self._speculator.settle(*found, emitted, seconds)

    def waited(self, seconds: float) -> None:
        """Learn for how long the device stands still between a step with drafts and the next."""
        policy = self._speculator.policy
        policy.gap = seconds if policy.gap == 0 else 0.9 * policy.gap + 0.1 * seconds
