"""The engine as a plain object: requests in, deltas out, one step at a time, without threads or sockets."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from headrace.core.cache_events import CacheEvents
from headrace.core.matcher import Matcher
from headrace.engine.chains import Chains
from headrace.engine.launch_times import LaunchTimes
from headrace.engine.loop_parts import GrammarSource, PendingStep, StepLearner, StepRunner, StepScheduler
from headrace.engine.profiling import StepProfiler
from headrace.engine.stats import EngineStats, EngineView, SpeculationTotals
from headrace.engine.usage_stats import UsageStats
from headrace.errors import DeviceLost, HeadraceError, InvalidRequest, PlatformError
from headrace.platforms.interface import TimesLaunches
from headrace.types import Constraint, Delta, Request, StepPlan

__all__ = ["EngineCore", "GrammarSource", "PendingStep", "StepLearner", "StepRunner", "StepScheduler"]

_log = logging.getLogger(__name__)

_DEPTH = 2
"""Steps in flight on one device: one runs, one waits behind it."""


@dataclass(slots=True)
class _InFlight:
    """A step that was launched."""

    plan: StepPlan
    launched: PendingStep
    start: float
    whole: bool
    """Nothing of it waits to be launched."""
    mark: int | None = None
    """A point of the device behind all of it, once it is whole."""


@dataclass(slots=True)
class _Compiling:
    """Sequences of one request that wait for their grammar, without a slot."""

    requests: list[Request]
    matchers: Future[list[Matcher]]


class EngineCore:
    """Schedule, launch, resolve the older step, commit. Step N+1 is launched while N runs. One thread calls it.

    Of a step with constrained rows the forward pass alone is launched at first. Its masks follow from the tokens of the
    step before it: they are made once that one is committed, while the device computes, and sampling is launched then.
    """

    def __init__(
        self,
        scheduler: StepScheduler,
        runner: StepRunner,
        max_num_seqs: int,
        block_size: int,
        clock: Callable[[], float] = time.monotonic,
        busy_seconds: Callable[[], float] | None = None,
        lost: Callable[[], DeviceLost | None] | None = None,
        explain: Callable[[DeviceLost], DeviceLost] = lambda error: error,
        grammars: GrammarSource | None = None,
        drafting: StepLearner | None = None,
        cache_events: CacheEvents | None = None,
        profiler: StepProfiler | None = None,
        stages: int = 1,
        times: TimesLaunches | None = None,
    ) -> None:
        """`busy_seconds`: the device's counter of its working time; without it the time is estimated from the launch
        and the end of steps. `lost`: why no step can be launched any more, for an engine that can lose a rank while it
        is idle. `explain`: says more of a loss that a drafter meets while a step is planned. `grammars`: makes matchers
        for constraints. `drafting`: learns from each step how many drafts pay. `cache_events`: what others may watch of
        the prefix cache. `stages`: of a pipeline. `times`: tells the device's working time of each step by itself."""
        self._scheduler, self._runner = scheduler, runner
        self._block_size = block_size
        self._clock = clock
        self._in_flight: deque[_InFlight] = deque()
        self._usage = UsageStats(max_num_seqs, clock())
        self._free_at = clock()
        """The time at which the device ended the last resolved step."""
        self._duration: float | None = None
        """Duration of the last step that the loop waited for."""
        self._depth = max(_DEPTH, stages)
        self._read_at: float | None = None
        """The time at which the last result was read; None if there was nothing to do since."""
        self._lost, self._explain_loss = lost or _never, explain
        self._grammars, self._drafting = grammars, drafting
        self.cache_events = cache_events
        self.profiler = profiler or StepProfiler("this engine was built without a profiler")
        self._compiling: list[_Compiling] = []
        self.chains = Chains(self._go_on, self._matchers)
        self._refused: list[tuple[list[str], HeadraceError]] = []
        self._busy_seconds = busy_seconds
        self._busy_before = busy_seconds() if busy_seconds is not None else 0.0
        self._times = LaunchTimes(times)

    def add(self, requests: Sequence[Request]) -> None:
        """Admit all sequences of one request, or none. Raises InvalidRequest, NeverFits, ContextOverflow, Overloaded.

        Sequences with a constraint are admitted by a later `step`, after their grammar is compiled; `take_refused` then
        returns those that were refused.
        """
        if (constraint := requests[0].constraint) is None:
            self._admit(requests, [None] * len(requests))
        else:
            self._compiling.append(_Compiling(list(requests), self._matchers(constraint, len(requests))))
        self.chains.begin(requests)

    def take_refused(self) -> list[tuple[list[str], HeadraceError]]:
        """Ids of sequences that were refused after `add`, with the reason, since the last call."""
        refused, self._refused = self._refused, []
        return refused

    def _matchers(self, constraint: Constraint, count: int = 1) -> Future[list[Matcher]]:
        if self._grammars is None:
            raise InvalidRequest("this engine cannot constrain output", constraint.field, "unsupported_value")
        return self._grammars.matchers(constraint, count)

    def _go_on(self, request: Request, matchers: Future[list[Matcher]] | None) -> None:
        """Add a request that extends a sequence which has just ended."""
        if matchers is None:
            self._admit([request], [None])
        else:
            self._compiling.append(_Compiling([request], matchers))

    def _admit(self, requests: Sequence[Request], matchers: Sequence[Matcher | None]) -> None:
        admitted: list[str] = []
        if not self._scheduler.has_work():
            # The device stood still because there was nothing to do.
            self._read_at = None
        try:
            for request, matcher in zip(requests, matchers, strict=True):
                self._scheduler.add(request, matcher)
                admitted.append(request.id)
        except Exception:
            self.abort(admitted)
            raise

    def _admit_compiled(self) -> None:
        """Admit sequences whose grammar has been compiled since the last step."""
        waiting, self._compiling = self._compiling, []
        for one in waiting:
            if not one.matchers.done():
                self._compiling.append(one)
            elif one.requests:
                try:
                    matchers = one.matchers.result()
                    self._admit(one.requests, matchers[: len(one.requests)])
                except HeadraceError as error:
                    self.chains.drop(request.id for request in one.requests)
                    self._refused.append(([request.id for request in one.requests], error))

    def abort(self, ids: Sequence[str]) -> None:
        """End sequences; their blocks are free from the next step on. Unknown ids are ignored."""
        self.chains.drop(ids)
        for request_id in ids:
            self._scheduler.abort(request_id)
        for one in self._compiling:
            one.requests = [request for request in one.requests if request.id not in ids]
        # The caller doesn't need the deltas of its own aborts.
        self._scheduler.drain()

    def finish(self, request_id: str) -> None:
        """End a sequence because a stop string was found."""
        self.chains.drop([request_id])
        self._scheduler.finish(request_id)

    def park(self, request_id: str) -> None:
        """Let an open sequence give its slot back, and pin its blocks until it is aborted."""
        self._scheduler.park(request_id)

    @property
    def in_flight(self) -> int:
        """The number of steps that are launched and not yet resolved."""
        return len(self._in_flight)

    def has_work(self) -> bool:
        """True if there is work to schedule, or a loss for `step` to raise."""
        return bool(self._in_flight or self._compiling) or self._scheduler.has_work() or self._lost() is not None

    def step(self) -> list[Delta]:
        """Launch one step and resolve the one before it. Raises DeviceLost; the engine cannot be used after that."""
        lost = None if self._in_flight else self._lost()
        if lost is not None:
            raise lost
        if self._compiling:
            self._admit_compiled()
        deltas: list[Delta] = []
        launched = len(self._in_flight) < self._depth and self._launch(deltas)
        if len(self._in_flight) == self._depth or (self._in_flight and not launched):
            self._resolve(deltas)
        self.chains.follow(deltas)
        return deltas

    def stats(self) -> EngineStats:
        """The engine's stats. Called by the thread that steps, because they include its processor time."""
        now = self._clock()
        return EngineStats(
            scheduler=self._scheduler.stats(),
            block_size=self._block_size,
            steps=self._usage.steps,
            device_busy=self._usage.device_busy(now),
            slot_occupancy=self._usage.slot_occupancy(now),
            kv_utilization=self._usage.kv_utilization(now),
            totals=self._usage.totals(time.thread_time()),
            speculation=SpeculationTotals() if self._drafting is None else self._drafting.totals(),
            tiers=self._scheduler.tier_stats(),
        )

    def view(self) -> EngineView:
        """The engine's stats with its sequences, blocks and prefixes. Called by the thread that steps."""
        return EngineView(self._clock(), self.stats(), self._scheduler.view())

    def flush_cache(self) -> int:
        """Empty the prefix cache, and close what is open. Returns the number of blocks that became free."""
        before = self._scheduler.stats().blocks_free
        self._scheduler.reset_cache()
        return self._scheduler.stats().blocks_free - before

    def _sample_memory(self, now: float) -> None:
        stats = self._scheduler.stats()
        places = stats.blocks_held * self._block_size
        if places:
            self._usage.record_memory(now, stats.kv_tokens / places)

    def _launch(self, deltas: list[Delta]) -> bool:
        """Launch a step. True if a step was launched or its launch failed, so that another may be tried at once."""
        try:
            with self.profiler.span("schedule"):
                plan = self._scheduler.schedule(self._clock())
        except DeviceLost as error:
            raise self._explain_loss(error) from error
        if plan is None:
            if not self._in_flight:
                self._read_at = None
            return False
        now = self._clock()
        try:
            with self.profiler.span("launch"):
                launched = self._runner.launch(plan)
        except Exception as error:
            deltas += self._failed(plan, error)
            return True
        if self._drafting is not None and not self._in_flight and self._read_at is not None:
            self._drafting.waited(self._clock() - self._read_at)
        self._in_flight.append(_InFlight(plan, launched, now, not plan.split, self._times.mark()))
        self._complete(deltas)
        return True

    def _complete(self, deltas: list[Delta]) -> None:
        """Launch the rest of the oldest step: all steps before it have been committed."""
        while self._in_flight and not self._in_flight[0].whole:
            oldest = self._in_flight[0]
            try:
                self._scheduler.complete(oldest.plan)
                oldest.launched.sample()
                oldest.whole, oldest.mark = True, self._times.mark()
            except Exception as error:
                self._in_flight.popleft()
                deltas += self._failed(oldest.plan, error)

    def _resolve(self, deltas: list[Delta]) -> None:
        oldest = self._in_flight.popleft()
        plan = oldest.plan
        waited = not oldest.launched.done()
        try:
            with self.profiler.span("wait"):
                result = oldest.launched.result()
        except Exception as error:
            self._free_at = self._clock()
            deltas += self._failed(plan, error)
            self._complete(deltas)
            return
        now = self._read_at = self._clock()
        worked = (
            self._estimate_busy(oldest.start, now, waited)
            if self._busy_seconds is None
            else self._measure_busy(self._busy_seconds, oldest.mark)
        )
        self._usage.record(now, worked, plan.num_seqs)
        if self._usage.memory_sample_due(now):
            self._sample_memory(now)
        with self.profiler.span("commit"):
            committed = self._scheduler.commit(plan, result, now)
        deltas += committed
        self.profiler.passed()
        if self._drafting is not None:
            self._drafting.settle(plan, sum(len(delta.token_ids) for delta in committed), worked)
        self._complete(deltas)
        if self._scheduler.broken:
            self._explain(deltas)

    def _explain(self, deltas: list[Delta]) -> None:
        """Add to the errors where the numbers that are not finite come from. One check serves all requests of the
        step."""
        broken = dict(self._scheduler.broken)
        self._scheduler.broken.clear()
        try:
            where = self._runner.where_not_finite(next(iter(broken.values())))
        except Exception as error:
            where = f"the search for their origin failed with {type(error).__name__}: {error}"
        for delta in deltas:
            if delta.request_id in broken:
                delta.error = f"{delta.error}: {where}"
        _log.error("the model's logits are not finite: %s (requests %s)", where, ", ".join(broken))

    def _measure_busy(self, busy_seconds: Callable[[], float], mark: int | None) -> float:
        """The device's working time since the step before: for the step that has just ended and what was launched in
        between. A device that cannot tell it may have worked on what comes next meanwhile."""
        until = self._times.busy_until(mark)
        before, self._busy_before = self._busy_before, busy_seconds() if until is None else until
        return max(0.0, self._busy_before - before)

    def _estimate_busy(self, start: float, now: float, waited: bool) -> float:
        """An estimate of a step's time on the device. If the step had ended before it was resolved, its end is unknown:
        the duration of the last step that was waited for is the best estimate."""
        began = max(start, self._free_at)
        if waited or self._duration is None:
            self._duration = now - began
        self._free_at = min(now, began + self._duration)
        return self._free_at - began

    def _failed(self, plan: StepPlan, error: Exception) -> list[Delta]:
        """End the requests of a step that could not be launched or failed on the device, and only those."""
        what = str(error) if isinstance(error, PlatformError) else f"{type(error).__name__}: {error}"
        message = f"step {plan.step} failed on the device: {what}"
        trace = None if isinstance(error, PlatformError) else error
        _log.error("%s (requests %s)", message, ", ".join(plan.request_ids) or "none", exc_info=trace)
        if isinstance(error, DeviceLost):
            raise error
        deltas = self._scheduler.fail(plan, message)
        if self._runner.recover():
            # Nothing runs now: the other sequences of the failed step wait to be computed again.
            self._scheduler.reset_cache()
            _log.warning("the KV cache was donated to that step: it was allocated again, and cached prefixes are lost")
        return deltas


def _never() -> None:
    """For an engine that only loses its device in a step."""
