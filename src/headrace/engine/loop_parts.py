"""The parts of an engine that its loop uses, as far as it uses them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from headrace.core.inspection import SchedulerView
from headrace.core.matcher import Matcher
from headrace.engine.stats import SpeculationTotals, TierStats
from headrace.types import Constraint, Delta, Request, SchedulerStats, StepPlan, StepResult

__all__ = ["GrammarSource", "PendingStep", "StepLearner", "StepRunner", "StepScheduler"]


class PendingStep(Protocol):
    def sample(self) -> None:
        """Launch the second part of a split step, after its plan has been completed."""

    def done(self) -> bool: ...

    def result(self) -> StepResult: ...


class StepRunner(Protocol):
    """The members of a runner that the loop uses."""

    def launch(self, plan: StepPlan) -> PendingStep: ...

    def recover(self) -> bool:
        """Called after a step that failed. True if the cache had to be allocated again and is empty."""

    def where_not_finite(self, tokens: Sequence[int]) -> str:
        """Compute a sequence whose logits were not finite again, slowly, and describe where that begins."""


class StepScheduler(Protocol):
    """The members of `core.Scheduler` that the loop uses."""

    def add(self, request: Request, matcher: Matcher | None = None) -> None: ...

    def abort(self, request_id: str) -> bool: ...

    def finish(self, request_id: str) -> bool: ...

    def park(self, request_id: str) -> None: ...

    def schedule(self, now: float) -> StepPlan | None: ...

    def complete(self, plan: StepPlan) -> None: ...

    broken: dict[str, list[int]]

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Delta]: ...

    def fail(self, plan: StepPlan, message: str) -> list[Delta]: ...

    def reset_cache(self) -> None: ...

    def drain(self) -> list[Delta]: ...

    def has_work(self) -> bool: ...

    def stats(self) -> SchedulerStats: ...

    def tier_stats(self) -> tuple[TierStats, ...]: ...

    def view(self) -> SchedulerView: ...


class GrammarSource(Protocol):
    """The members of `grammar.compiler.GrammarCompiler` that the loop uses."""

    def matchers(self, constraint: Constraint, count: int) -> Future[list[Matcher]]: ...

    def close(self) -> None: ...


class StepLearner(Protocol):
    """The members of `drafting.Drafting` that the loop uses."""

    def settle(self, plan: StepPlan, emitted: int, seconds: float) -> None: ...

    def waited(self, seconds: float) -> None: ...

    def totals(self) -> SpeculationTotals: ...
