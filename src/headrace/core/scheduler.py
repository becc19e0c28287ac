"""Decides what every step computes: schedule → (the device executes) → commit."""

from __future__ import annotations

from itertools import count

from headrace.core.admission import CoreConfig, admit
from headrace.core.block_source import TierStats
from headrace.core.drafts import DraftSource
from headrace.core.fetches import Fetches, Tiers
from headrace.core.growth import Growth
from headrace.core.inspection import SchedulerView, look
from headrace.core.invariants import check
from headrace.core.kv_cache import KVCache
from headrace.core.matcher import Matcher
from headrace.core.open_sequences import OpenSequences
from headrace.core.outcome import scheduler_stats
from headrace.core.placed_plans import Plans
from headrace.core.plan_builder import complete
from headrace.core.prefill import Prefill
from headrace.core.prefill_chunk import PrefillChunk
from headrace.core.radix import RadixTree
from headrace.core.running import RunningSequences
from headrace.core.sequence import Sequence
from headrace.core.sequence_ends import SequenceEnds
from headrace.core.slots import Slots
from headrace.core.step_clock import StepClock
from headrace.core.step_record import StepExtras
from headrace.core.step_results import StepResults
from headrace.core.successors import Successors
from headrace.core.verification import Verification
from headrace.core.waiting_queue import WaitingQueue
from headrace.errors import Overloaded
from headrace.types import Delta, Request, SchedulerStats, StepPlan, StepResult
from headrace.wording import counted

__all__ = ["Scheduler"]


class Scheduler:
    """A pure state machine. Not thread-safe: one thread calls everything.

    There are no phases: each step computes tokens that are not computed yet, within one token budget. Decodes come
    first, then prefill in chunks. Plans are scheduled, executed and committed in order, some before earlier commits.
    """

    def __init__(self, config: CoreConfig, drafts: DraftSource | None = None, tiers: Tiers | None = None) -> None:
        """`drafts`: guesses tokens for speculative decoding. `tiers`: keeps blocks beside the device."""
        self.config = config
        slots = min(config.max_num_seqs, config.max_num_batched_tokens)
        self._cache = KVCache(config.num_blocks, config.block_size, slots, config.max_model_len, config.prefix_caching)
        self._slots = Slots(slots)
        self._plans = Plans(self._slots, self._cache.table, config.block_size)
        self._waiting = WaitingQueue()
        self._requests: dict[str, Sequence] = {}
        """All sequences that have not ended."""
        self._running = RunningSequences(self._slots, config.block_size, config.stages)
        self._open = OpenSequences(self._cache, self._slots)
        self._orders = count(1)
        parts = self._running, self._slots, self._cache
        self._successors = Successors(config, self._requests, self._orders, *parts)
        self._prefill = Prefill(self._waiting, *parts, self._open, self._successors)
        self._verification = None if drafts is None else Verification(drafts, config, *parts)
        self._fetches = Fetches(self._cache, tiers)
        self._growth = Growth(self._running, self._cache, self._open, self._fetches, self._preempt)
        self._clock = StepClock()
        ahead = self._successors, self._verification
        kept = self._open, self._fetches
        self._ends = SequenceEnds(self._clock, self._requests, self._waiting, parts, kept, ahead)
        self._results = StepResults(self._clock, self._running, self._cache, self._successors, self._ends)
        self._preemptions = 0
        self._outbox: list[Delta] = []
        self.broken = self._ends.broken
        """Known tokens of ended sequences whose logits were not finite, until the engine removes them."""

    # Requests

    def add(self, request: Request, matcher: Matcher | None = None) -> None:
        """Queue a request, or go on with the open sequence that it extends, which needs no place in the queue; its
        output follows the grammar of `matcher`. If it raises NeverFits or Overloaded, it has no effect."""
        assert request.id not in self._requests, "ids are the client's, one for each sequence"
        admit(request, self.config)
        goes_on = request.extends in self._open
        full = len(self._waiting) >= self.config.max_waiting
        if full and not goes_on:
            raise self._overloaded()
        # An invalid request may only fail here, before any state has changed.
        seq = Sequence.of(request, next(self._orders), self.config.vocab_size, matcher)
        if full and not self._open.may_go_on(seq):
            raise self._overloaded()
        self._requests[request.id] = seq
        if self._verification is not None:
            self._verification.begin(seq)
        self._successors.watch(seq)
        if not (goes_on and self._prefill.resume(seq)):
            self._queue(seq)

    def abort(self, request_id: str) -> bool:
        """End a request now; its blocks are free for the next step, and tokens in flight are dropped. The next commit
        or drain returns one delta with reason `abort`. An open sequence and a pin are closed. False: no such request
        runs."""
        self._successors.undo(request_id)
        seq = self._requests.get(request_id)
        if seq is None:
            self._open.close(request_id)
            return False
        self._ends.end(seq)
        self._outbox.append(Delta(request_id, finish_reason="abort", cached_tokens=max(seq.cached, 0)))
        return True

    def finish(self, request_id: str) -> bool:
        """End a request as `abort` does, but without a delta: the caller has found its end (a stop string)."""
        self._successors.undo(request_id)
        seq = self._requests.get(request_id)
        if seq is None:
            return False
        self._ends.end(seq, opens=True)
        return True

    def park(self, request_id: str) -> None:
        """Let an open sequence give its slot back, and pin its blocks for several requests that go on with it. `abort`
        ends the pin. Does nothing if the sequence is not open."""
        self._open.park(request_id, self._clock.now)

    def drain(self) -> list[Delta]:
        """Deltas that were made outside of a commit (aborts), in case no commit follows."""
        deltas, self._outbox = self._outbox, []
        return deltas

    def has_work(self) -> bool:
        """True if a sequence waits or runs, or a plan is in flight."""
        return bool(self._requests or self._clock.in_flight) or self._fetches.due()

    # A step

    def schedule(self, now: float) -> StepPlan | None:
        """Decide the next step. `now`: monotonic seconds. None: nothing can be computed before another commit or
        request.

        The plan's arrays are read-only and stay valid until it is committed.
        """
        if self._running.waits() or self._successors:
            return None
        self._clock.now = now
        self._open.expire(now)
        step = self._clock.launched + 1
        self._fetches.begin(now, step, len(self._running))
        self._growth.known()
        decodes = self._growth.decodes()
        held = self._running.held()
        chunks: list[PrefillChunk] = []
        extras = StepExtras()
        budget = self.config.max_num_batched_tokens - len(decodes) - len(held)
        self._prefill.plan(step, self._clock.committed, now, budget, chunks, extras)
        if self._verification is not None:
            self._verification.plan(step, decodes, held, chunks)
        if not (chunks or len(decodes) or self._fetches.due()):
            return None
        plan = self._plans.build(step, decodes, chunks, extras)
        self._fetches.take(plan)
        self._running.advance(decodes, chunks)
        self._clock.launch()
        if plan.split and self.config.stages > 1:
            self.complete(plan)
        return plan

    def complete(self, plan: StepPlan) -> None:
        """Finish a plan whose `split` is set, before its second part is launched. All plans before it must have been
        committed or failed, and no other may be scheduled until then: the forward pass of the next step reads the
        tokens that this one samples. In a pipeline every token before it is known, so it is finished at once."""
        assert plan.split
        oldest = self._clock.in_flight[0]
        assert plan.step == oldest or self.config.stages > 1, "all plans before it have been committed"
        plan.split = self.config.stages == 1
        for one in plan.tag.waiting:
            seq = one.seq
            # The tokens that a grammar forces at its start; all others are appended by commits.
            if seq.epoch == one.epoch and one.position == len(seq.tokens) == seq.prompt_len:
                self._results.follow(seq)
        complete(plan)

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Delta]:
        """Process the result of a plan; plans are committed in the order in which they were scheduled.

        Returns a delta for each sequence that got a token or ended, earlier aborts first.
        """
        assert self._clock.in_flight, "no plan is in flight"
        assert self._clock.in_flight[0] == plan.step, "plans are committed in order"
        self._clock.retire(plan.step)
        deltas = self.drain() + self._results.take(plan, result)
        if self._verification is not None:
            self._verification.commit(plan.step, plan.tag.chunks)
        self._running.land()
        self._fetches.commit(plan, result, now)
        return deltas

    def fail(self, plan: StepPlan, message: str) -> list[Delta]:
        """Replaces the commit of a plan on which the device failed: its sequences end with reason `error`.

        It may be any plan in flight: the oldest, or one that could not be launched. Blocks that it or a later plan
        should have filled are removed from the cache, and all other running sequences are computed again from their
        committed tokens. The results of the other plans in flight are ignored, but they must still be committed or
        failed.
        """
        self._clock.retire(plan.step)
        self._successors.undo_all()
        deltas = self.drain()
        for seq, epoch in plan.tag.sequences():
            if seq.epoch == epoch:
                deltas.append(self._ends.fail(seq, message))
        self._open.clear()
        self._fetches.fail(plan.step)
        for seq in self._running.all():
            self._ends.set_back(seq, keep=False)
            self._queue(seq)
        for seq in self._waiting:
            seq.forget_plans()
        self._cache.tree.drop(plan.step)
        return deltas

    # Inspection

    def stats(self) -> SchedulerStats:
        prefill = self._prefill
        counts = (len(self._waiting), self._preemptions, prefill.cached_tokens, prefill.prompt_tokens)
        held, fetching = self._open.all(), self._fetches.waiting
        return scheduler_stats(self._cache, self._slots, self._running.all(), held, *counts, fetching)

    def tier_stats(self) -> tuple[TierStats, ...]:
        """Totals of what keeps blocks beside the device."""
        return self._fetches.stats()

    @property
    def tree(self) -> RadixTree:
        return self._cache.tree

    def view(self) -> SchedulerView:
        return look(self._cache, self._slots, self._running.all(), self._waiting, self._open)

    def reset_cache(self) -> None:
        """Remove all cached prefixes and close what is open; blocks of running sequences are released when they end."""
        self._ends.reset_cache()

    def check(self) -> None:
        """Assert all invariants. Slow: for tests."""
        pinned, reserved = self._open.pinned() + self._fetches.locked(), self._fetches.reserved()
        check(self._cache, self._slots, self._running.all() + self._open.all(), pinned, reserved)
        assert len(self._requests) == len(self._running) + len(self._waiting) + len(self._successors)

    # Parts of add and schedule

    def _overloaded(self) -> Overloaded:
        waiting = counted(len(self._waiting), "request")
        return Overloaded(f"{waiting} waiting already, and max_waiting is {self.config.max_waiting}")

    def _preempt(self, seq: Sequence) -> None:
        """Put a sequence back in the queue. Of its computed blocks, those stay in the tree that there is room for."""
        self._ends.set_back(seq)
        seq.hold = self._clock.launched
        self._queue(seq)
        self._preemptions += 1

    def _queue(self, seq: Sequence) -> None:
        self._waiting.push(seq)
        self._fetches.add(seq)
