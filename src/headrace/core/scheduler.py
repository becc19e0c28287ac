"""Decides what every step computes: schedule → (the device executes) → commit."""

from __future__ import annotations

import logging
from collections import deque
from itertools import count

import numpy as np

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
from headrace.core.outcome import append, append_forced, emit, of_chunk, scheduler_stats, score_prompt
from headrace.core.placed_plans import Plans
from headrace.core.plan_builder import PrefillChunk, StepExtras, StepRecord, complete
from headrace.core.prefill import Prefill
from headrace.core.radix import RadixTree
from headrace.core.running import RunningSequences
from headrace.core.sequence import Sequence
from headrace.core.slots import Slots
from headrace.core.successors import Successors
from headrace.core.verification import Verification
from headrace.core.waiting_queue import WaitingQueue
from headrace.errors import Overloaded
from headrace.types import NO_TOKEN, NOT_FINITE, Delta, Request, SchedulerStats, StepPlan, StepResult

__all__ = ["Scheduler"]

_log = logging.getLogger(__name__)


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
        self._in_flight: deque[int] = deque()
        self._now = 0.0
        """Of the last step."""
        self._launched = self._committed = self._preemptions = 0
        self._outbox: list[Delta] = []
        self.broken: dict[str, list[int]] = {}
        """Known tokens of ended sequences whose logits were not finite, until the engine reads them."""

    # Requests

    def add(self, request: Request, matcher: Matcher | None = None) -> None:
        """Queue a request, or go on with the open sequence that it extends; its output follows the grammar of
        `matcher`. If it raises NeverFits or Overloaded, it has no effect."""
        assert request.id not in self._requests, "ids are the client's, one for each sequence"
        admit(request, self.config)
        goes_on = request.extends in self._open
        if not goes_on and len(self._waiting) >= self.config.max_waiting:
            raise Overloaded(f"{len(self._waiting)} requests are waiting and max_waiting is {self.config.max_waiting}")
        # An invalid request may only fail here, before any state has changed.
        seq = Sequence.of(request, next(self._orders), self.config.vocab_size, matcher)
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
        self._end(seq)
        self._outbox.append(Delta(request_id, finish_reason="abort", cached_tokens=max(seq.cached, 0)))
        return True

    def finish(self, request_id: str) -> bool:
        """End a request as `abort` does, but without a delta: the caller has found its end (a stop string)."""
        self._successors.undo(request_id)
        seq = self._requests.get(request_id)
        if seq is None:
            return False
        self._end(seq, opens=True)
        return True

    def park(self, request_id: str) -> None:
        """Let an open sequence give its slot back, and pin its blocks for several requests that go on with it. `abort`
        ends the pin. Does nothing if the sequence is not open."""
        self._open.park(request_id, self._now)

    def drain(self) -> list[Delta]:
        """Deltas that were made outside of a commit (aborts), in case no commit follows."""
        deltas, self._outbox = self._outbox, []
        return deltas

    def has_work(self) -> bool:
        """True if a sequence waits or runs, or a plan is in flight."""
        return bool(self._requests or self._in_flight) or self._fetches.due()

    # A step

    def schedule(self, now: float) -> StepPlan | None:
        """Decide the next step. `now`: monotonic seconds. None: nothing can be computed before another commit or
        request.

        The plan's arrays are read-only and stay valid until it is committed.
        """
        if self._running.waits() or self._successors:
            return None
        self._now = now
        self._open.expire(now)
        step = self._launched + 1
        self._fetches.begin(now, step, len(self._running))
        self._growth.known()
        decodes = self._growth.decodes()
        held = self._running.held()
        chunks: list[PrefillChunk] = []
        extras = StepExtras()
        budget = self.config.max_num_batched_tokens - len(decodes) - len(held)
        self._prefill.plan(step, self._committed, now, budget, chunks, extras)
        if self._verification is not None:
            self._verification.plan(step, decodes, held, chunks)
        if not (chunks or len(decodes) or self._fetches.due()):
            return None
        plan = self._plans.build(step, decodes, chunks, extras)
        self._fetches.take(plan)
        self._running.advance(decodes, chunks)
        self._launched = step
        self._in_flight.append(step)
        if plan.split and self.config.stages > 1:
            self.complete(plan)
        return plan

    def complete(self, plan: StepPlan) -> None:
        """Finish a plan whose `split` is set, before its second part is launched. All plans before it must have been
        committed or failed, and no other may be scheduled until then: the forward pass of the next step reads the
        tokens that this one samples. In a pipeline every token before it is known, so it is finished at once."""
        assert plan.split
        assert plan.step == self._in_flight[0] or self.config.stages > 1, "all plans before it have been committed"
        plan.split = self.config.stages == 1
        for one in plan.tag.waiting:
            seq = one.seq
            # The tokens that a grammar forces at its start; all others are appended by commits.
            if seq.epoch == one.epoch and one.position == len(seq.tokens) == seq.prompt_len:
                self._follow(seq, [])
        complete(plan)

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Delta]:
        """Process the result of a plan; plans are committed in the order in which they were scheduled.

        Returns a delta for each sequence that got a token or ended, earlier aborts first.
        """
        assert self._in_flight, "no plan is in flight"
        assert self._in_flight[0] == plan.step, "plans are committed in order"
        self._retire(plan)
        launched: StepRecord = plan.tag
        deltas = self.drain()
        tokens: list[int] = result.tokens.tolist()
        decodes = launched.decodes
        indices: list[int] = plan.sampling.position[: launched.count].tolist()
        for row, seq in enumerate(decodes.seqs):
            if seq.epoch == decodes.epochs[row]:
                try:
                    delta = self._take_row(seq, indices[row], row, tokens[row], result)
                    if delta is not None:
                        deltas.append(delta)
                except Exception as error:
                    deltas.append(self._fault(seq, error))
        if launched.fills:
            for at in np.flatnonzero(launched.offsets == self.config.block_size - 1).tolist():
                seq = decodes.seqs[at]
                if seq.slot >= 0:
                    self._cache.commit_blocks(seq, self._committed)
        for chunk in launched.settled(result):
            if chunk.seq.epoch == chunk.epoch:
                try:
                    deltas.extend(self._commit_chunk(chunk, tokens, result))
                except Exception as error:
                    deltas.append(self._fault(chunk.seq, error))
        if self._verification is not None:
            self._verification.commit(plan.step, launched.chunks)
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
        self._retire(plan)
        self._successors.undo_all()
        deltas = self.drain()
        for seq, epoch in plan.tag.sequences():
            if seq.epoch == epoch:
                deltas.append(self._fail(seq, message))
        self._open.clear()
        self._fetches.fail(plan.step)
        for seq in self._running.all():
            self._release(seq, keep=False)
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
        self._open.clear()
        self._fetches.reset()
        self._cache.tree.reset()

    def check(self) -> None:
        """Assert all invariants. Slow: for tests."""
        pinned, reserved = self._open.pinned() + self._fetches.locked(), self._fetches.reserved()
        check(self._cache, self._slots, self._running.all() + self._open.all(), pinned, reserved)
        assert len(self._requests) == len(self._running) + len(self._waiting) + len(self._successors)

    # Parts of schedule

    def _preempt(self, seq: Sequence) -> None:
        """Put a sequence back in the queue. Of its computed blocks, those stay in the tree that there is room for."""
        self._release(seq)
        seq.hold = self._launched
        self._queue(seq)
        self._preemptions += 1

    def _queue(self, seq: Sequence) -> None:
        self._waiting.push(seq)
        self._fetches.add(seq)

    # Parts of commit

    def _retire(self, plan: StepPlan) -> None:
        self._in_flight.remove(plan.step)
        self._committed = max(self._committed, plan.step)

    def _take_row(self, seq: Sequence, index: int, row: int, token: int, result: StepResult) -> Delta | None:
        """Process the row of a sequence's token `index`, which was sampled, or scored because it was known. Returns a
        delta, or None if the caller has the token."""
        if token < 0 and token != NO_TOKEN:
            return self._without_token(seq, token)
        seq.filled = index
        if index == len(seq.tokens):
            append(seq, token)
            if seq.drafted or seq.forces:
                self._follow(seq, [token])
        if seq.emitted > index:
            return None
        delta = emit(seq, index, row, result)
        if delta.finish_reason is not None:
            delta.went_on = self._successors.settle(seq)
            self._end(seq, opens=delta.error is None)
        return delta

    def _take_sampled(self, chunk: PrefillChunk, row: int, tokens: list[int], result: StepResult) -> list[Delta | None]:
        """Process the rows of a chunk that sample: the token after the known ones, and one after each draft as long as
        the drafts are what was sampled."""
        seq, found = chunk.seq, list[Delta | None]()
        chunk.accepted = 0
        for at in range(1 + len(chunk.drafts)):
            found.append(self._take_row(seq, chunk.end + at, row + at, tokens[row + at], result))
            # The token was sampled, or forced by a grammar.
            known = seq.tokens[chunk.end + at : chunk.end + at + 1]
            if at == len(chunk.drafts) or known != [chunk.drafts[at]]:
                break
            chunk.accepted += 1
            if seq.epoch != chunk.epoch:
                break
        if chunk.drafts and found[0] is not None:
            found[0].accepted_drafts = chunk.accepted
            found[0].rejected_drafts = len(chunk.drafts) - chunk.accepted
        return found

    def _follow(self, seq: Sequence, tokens: list[int]) -> None:
        """Append what the grammar of a sequence forces after its new tokens; a running sequence computes that next."""
        followed = append_forced(seq)
        if followed and seq.slot >= 0:
            self._running.prefill_known(seq)
        if self._verification is not None and (tokens or followed):
            self._verification.extend(seq, tokens + followed, now=not tokens)

    def _commit_chunk(self, chunk: PrefillChunk, tokens: list[int], result: StepResult) -> list[Delta]:
        seq, row, found = chunk.seq, chunk.row, list[Delta | None]()
        seq.filled = chunk.end
        if not chunk.pool(result):
            return [self._without_token(seq, NOT_FINITE)]
        for position in range(chunk.score_from, chunk.score_to):
            if tokens[row] == NOT_FINITE:
                return [self._without_token(seq, NOT_FINITE)]
            if position < seq.prompt_len - 1:
                row = score_prompt(seq, position, chunk.rivals if position == chunk.score_from else (), row, result)
            else:
                found.append(self._take_row(seq, position + 1, row, tokens[row], result))
                row += 1
        if chunk.samples:
            found += self._take_sampled(chunk, row, tokens, result)
        elif chunk.end == seq.end:
            found.append(Delta(seq.id, finish_reason="length", cached_tokens=seq.cached))
            self._end(seq, opens=True)
        if seq.slot >= 0:
            seq.filled = max(chunk.end, seq.filled)
            self._cache.commit_blocks(seq, self._committed)
        return of_chunk(found, chunk.end, seq)

    def _fault(self, seq: Sequence, error: Exception) -> Delta:
        """End a sequence whose result could not be processed: an internal error must not affect other sequences."""
        _log.error("request %s failed in the engine", seq.id, exc_info=error)
        return self._fail(seq, f"the engine failed on this request: {type(error).__name__}: {error}")

    def _without_token(self, seq: Sequence, why: int) -> Delta:
        """End a sequence for which the device found no token."""
        if why != NOT_FINITE:
            return self._fail(seq, "no token is left to sample: bans, masks and the constraint exclude every one", True)
        self.broken[seq.id] = list(seq.tokens)
        delta = self._fail(seq, "the model's logits are not finite")
        # Cached prefixes of this sequence may hold the same invalid numbers.
        self._fetches.forget(seq)
        self.reset_cache()
        return delta

    def _fail(self, seq: Sequence, message: str, own: bool = False) -> Delta:
        cached = max(seq.cached, 0)
        self._end(seq, keep=False)
        return Delta(seq.id, finish_reason="error", error=message, request_fault=own, cached_tokens=cached)

    def _end(self, seq: Sequence, keep: bool = True, opens: bool = False) -> None:
        """Remove a sequence; its results in flight become invalid. `opens`: it stays open if its request wants that."""
        self._successors.leave(seq)
        if seq.slot >= 0 and opens and seq.request.keep:
            seq.closed_at = self._launched
            self._running.leave(seq)
            self._open.add(seq, self._now)
        elif seq.slot >= 0:
            self._release(seq, keep)
        elif not seq.succeeded:
            self._waiting.remove(seq)
        self._fetches.remove(seq)
        del self._requests[seq.id]
        seq.epoch += 1
        if self._verification is not None:
            self._verification.end(seq, keep)

    def _release(self, seq: Sequence, keep: bool = True) -> None:
        """Release the slot and the blocks of a sequence."""
        slot = seq.slot
        self._cache.release(seq, self._committed, self._launched, keep)
        self._slots.release(slot)
        self._running.leave(seq)
