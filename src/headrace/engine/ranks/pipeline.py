"""Rank 0's runner of a pipeline: it launches the first stage, and gets results from the last one's process."""

from __future__ import annotations

from dataclasses import replace

from headrace.engine.core_loop import PendingStep
from headrace.engine.ranks.leader import Followers, GroupRunner, GroupStep
from headrace.engine.ranks.step_patience import rows_of
from headrace.errors import DeviceLost, HeadraceError
from headrace.types import StepPlan, StepResult

__all__ = ["PipelineRunner"]


class PipelineRunner(GroupRunner):
    """A `core_loop.StepRunner` over all stages. Each runs its part of every step, in order. Steps in different
    stages overlap."""

    def launch(self, plan: StepPlan) -> PendingStep:
        """Raises DeviceLost."""
        assert not plan.split, "all that the plan depends on has been committed"
        return _PipelineStep(plan.step, rows_of(plan), self._launch(plan), self._followers)


class _PipelineStep:
    def __init__(self, step: int, rows: int, first: GroupStep, followers: Followers) -> None:
        """`first`: the first stage's part."""
        self._step, self._rows, self._first, self._followers = step, rows, first, followers

    def sample(self) -> None:
        raise AssertionError("a step of a pipeline has one part")

    def done(self) -> bool:
        return self._followers.has_result(self._step)

    def result(self) -> StepResult:
        try:
            found = self._followers.result(self._step, self._rows, self._check_first)
        except HeadraceError as error:
            raise DeviceLost(str(error)) from error
        return replace(found, stored=self._first.result().stored)

    def _check_first(self) -> None:
        """Raises what has ended the first stage's part. The other stages wait for its rows, and report nothing."""
        if self._first.done():
            self._first.own()
