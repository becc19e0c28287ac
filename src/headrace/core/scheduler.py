"""Decides what every step computes: schedule → (the device executes) → commit."""

from __future__ import annotations

import logging
from collections import deque

import numpy as np

from headrace.core.admission import CoreConfig, admit
from headrace.core.block_pool import blocks_for
from headrace.core.invariants import check
from headrace.core.kv_cache import KVCache
from headrace.core.matcher import Matcher
from headrace.core.outcome import append, append_forced, emit, merged, scheduler_stats, token_logprobs
from headrace.core.plan_builder import Decodes, PrefillChunk, StepExtras, StepRecord, build, complete
from headrace.core.running import RunningSequences, urgency
from headrace.core.sequence import Sequence
from headrace.core.slots import Slots
from headrace.core.waiting_queue import WaitingQueue
from headrace.errors import Overloaded
from headrace.types import NO_CHOICE, NOT_FINITE, Delta, Request, SchedulerStats, StepPlan, StepResult

__all__ = ["Scheduler"]

_log = logging.getLogger(__name__)


class Scheduler:
    """A pure state machine. Not thread-safe: one thread calls everything.

    There are no phases: each step computes tokens of running sequences that are not computed yet, within one token
    budget. Decodes come first, then prefill in chunks. Plans may be scheduled before earlier ones are committed; they
    are executed and committed in order.
    """

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        slots = min(config.max_num_seqs, config.max_num_batched_tokens)
        self._cache = KVCache(config.num_blocks, config.block_size, slots, config.max_model_len, config.prefix_caching)
        self._slots = Slots(slots)
        self._waiting = WaitingQueue()
        self._requests: dict[str, Sequence] = {}
        """All sequences that have not ended."""
        self._running = RunningSequences(self._slots, config.block_size)
        self._in_flight: deque[int] = deque()
        self._launched = 0
        self._committed = 0
        self._outbox: list[Delta] = []
        self.broken: dict[str, list[int]] = {}
        """Known tokens of sequences that commits have ended because their logits were not finite, until the engine
        reads them."""
        self._arrivals = self._preemptions = self._cached_tokens = self._prompt_tokens = 0

    # Requests

    def add(self, request: Request, matcher: Matcher | None = None) -> None:
        """Queue a request; its output follows the grammar of `matcher`. If it raises NeverFits or Overloaded, it has no
        effect."""
        assert request.id not in self._requests, "ids are the client's, one for each sequence"
        admit(request, self.config)
        if len(self._waiting) >= self.config.max_waiting:
            raise Overloaded(f"{len(self._waiting)} requests are waiting and max_waiting is {self.config.max_waiting}")
        # An invalid request may only fail here, before any state has changed.
        seq = Sequence.of(request, self._arrivals + 1, self.config.vocab_size, matcher)
        self._arrivals += 1
        self._requests[request.id] = seq
        self._waiting.push(seq)

    def abort(self, request_id: str) -> bool:
        """End a request now; its blocks are free for the next step, and tokens in flight are dropped. The next commit
        or drain returns one delta with reason `abort`. False: no such request."""
        seq = self._requests.get(request_id)
        if seq is None:
            return False
        self._end(seq)
        self._outbox.append(Delta(request_id, finish_reason="abort", cached_tokens=max(seq.cached, 0)))
        return True

    def finish(self, request_id: str) -> bool:
        """End a request as `abort` does, but without a delta: the caller has found its end (a stop string)."""
        seq = self._requests.get(request_id)
        if seq is None:
            return False
        self._end(seq)
        return True

    def drain(self) -> list[Delta]:
        """Deltas that were made outside of a commit (aborts), in case no commit follows."""
        deltas, self._outbox = self._outbox, []
        return deltas

    def has_work(self) -> bool:
        """True if a sequence waits or runs, or a plan is in flight."""
        return bool(self._requests or self._in_flight)

    # A step

    def schedule(self, now: float) -> StepPlan | None:
        """Decide the next step. `now`: monotonic seconds. None: nothing can be computed before another commit or
        request.

        The plan's arrays are read-only and stay valid until it is committed.
        """
        step = self._launched + 1
        self._grow_known()
        decodes = self._grow()
        chunks: list[PrefillChunk] = []
        extras = StepExtras()
        self._prefill(step, now, self.config.max_num_batched_tokens - len(decodes), chunks, extras)
        if not chunks and not len(decodes):
            return None
        plan = build(step, decodes, chunks, extras, self._slots, self._cache.table, self.config.block_size)
        self._running.advance(decodes, chunks)
        self._launched = step
        self._in_flight.append(step)
        return plan

    def complete(self, plan: StepPlan) -> None:
        """Finish a plan whose `split` is set, before its second part is launched. All plans before it must have been
        committed or failed, and no other may be scheduled until then: the forward pass of the next step reads the
        tokens that this one samples."""
        assert plan.split
        assert plan.step == self._in_flight[0], "all plans before it have been committed"
        for one in plan.tag.waiting:
            seq = one.seq
            # The tokens that a grammar forces at its start; all others are appended by commits.
            if seq.epoch == one.epoch and one.position == len(seq.tokens) == seq.prompt_len:
                self._append_forced(seq)
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
                    deltas += self._take_row(seq, indices[row], row, tokens[row], result)
                except Exception as error:
                    deltas.append(self._fault(seq, error))
        if launched.fills:
            for at in np.flatnonzero(launched.offsets == self.config.block_size - 1).tolist():
                seq = decodes.seqs[at]
                if seq.slot >= 0:
                    self._cache.commit_blocks(seq, self._committed)
        for chunk in launched.chunks:
            if chunk.seq.epoch == chunk.epoch:
                try:
                    deltas.extend(self._commit_chunk(chunk, tokens, result))
                except Exception as error:
                    deltas.append(self._fault(chunk.seq, error))
        return deltas

    def fail(self, plan: StepPlan, message: str) -> list[Delta]:
        """Replaces the commit of a plan on which the device failed: its sequences end with reason `error`.

        It may be any plan in flight: the oldest, or one that could not be launched. Blocks that it or a later plan
        should have filled are removed from the cache, and all other running sequences are computed again from their
        committed tokens. The results of the other plans in flight are ignored, but they must still be committed or
        failed.
        """
        self._retire(plan)
        launched: StepRecord = plan.tag
        deltas = self.drain()
        taking_part = [*zip(launched.decodes.seqs, launched.decodes.epochs, strict=True)]
        taking_part += [(chunk.seq, chunk.epoch) for chunk in launched.chunks]
        for seq, epoch in taking_part:
            if seq.epoch == epoch:
                deltas.append(self._fail(seq, message))
        for seq in self._running.all():
            self._release(seq, keep=False)
            self._waiting.push(seq)
        for seq in self._waiting:
            seq.epoch += 1
            seq.hold = -1
            seq.scored = len(seq.prompt_logprobs) - 1 if seq.prompt_logprobs is not None else 0
        self._cache.tree.drop(plan.step)
        return deltas

    # Inspection

    def stats(self) -> SchedulerStats:
        counts = (len(self._waiting), self._preemptions, self._cached_tokens, self._prompt_tokens)
        return scheduler_stats(self._cache, self._slots, self._running.all(), *counts)

    def reset_cache(self) -> None:
        """Remove all cached prefixes; blocks of running sequences are released when they end."""
        self._cache.tree.reset()

    def check(self) -> None:
        """Assert all invariants. Slow: for tests."""
        check(self._cache, self._slots, self._running.all())
        assert len(self._requests) == len(self._running) + len(self._waiting)

    # Parts of schedule

    def _grow(self) -> Decodes:
        """Allocate a block for every decode that starts one; preempt if there is none. Returns the decodes that
        continue."""
        decodes = self._running.decodes()
        if decodes.until_start:
            return decodes
        for at in np.flatnonzero(decodes.positions % self.config.block_size == 0).tolist():
            seq = decodes.seqs[at]
            while seq.slot >= 0 and not self._cache.grow(seq):
                self._preempt(self._running.last())
        return self._running.decodes()

    def _grow_known(self) -> None:
        """Allocate blocks for the forced tokens of sequences; preempt if there is none. This runs before the decodes of
        the step are fixed, because one of them may be preempted."""
        for seq in self._running.growing():
            while seq.slot >= 0 and seq.blocks < blocks_for(len(seq.tokens), self.config.block_size):
                if not self._cache.grow(seq):
                    self._preempt(self._running.last())

    def _prefill(self, step: int, now: float, budget: int, chunks: list[PrefillChunk], extras: StepExtras) -> None:
        """Spend the rest of the budget on prefill: waiting sequences and those already running, in one order."""
        begun = deque(self._running.prefilling())
        full = not self._slots.free
        while budget:
            first = self._waiting.first
            if first is not None and not full and not (begun and urgency(begun[0]) < (True, first.rank)):
                entered = self._admit(step, now, extras)
                full = entered is None or not self._slots.free
                if entered is not None:
                    budget -= self._chunk(entered, step, budget, chunks, extras)
            elif begun:
                budget -= self._chunk(begun.popleft(), step, budget, chunks, extras)
            else:
                return

    def _preempt(self, seq: Sequence) -> None:
        """Put a sequence back in the queue. Its computed blocks stay in the tree while there is room; the rest is
        computed again."""
        self._release(seq)
        seq.hold = self._launched
        self._waiting.push(seq)
        self._preemptions += 1

    def _admit(self, step: int, now: float, extras: StepExtras) -> Sequence | None:
        """Start the next waiting sequence, if its known tokens fit. One block per running sequence is reserved for
        growth."""
        seq = self._waiting.pick(self._committed, lambda seq: self._estimate(seq, step))
        if seq is None:
            return None
        attached = self._cache.attach(seq, self._slots.free[-1], step, reserve=len(self._running))
        if attached is None:
            return None
        self._waiting.remove(seq)
        self._slots.assign(seq, attached.cached)
        self._running.enter(seq)
        if attached.copy is not None:
            extras.copies.append(attached.copy)
        if seq.penalised and attached.cached:
            extras.history.append((seq.slot, 0, seq.array(0, attached.cached)))
        if seq.cached < 0:
            seq.cached, seq.first_scheduled = attached.cached, now
            self._cached_tokens += attached.cached
            self._prompt_tokens += seq.prompt_len
        return seq

    def _estimate(self, seq: Sequence, step: int) -> int:
        if seq.estimated_at != step:
            seq.estimate, seq.estimated_at = self._cache.estimate(seq), step
        return seq.estimate

    def _chunk(self, seq: Sequence, step: int, budget: int, chunks: list[PrefillChunk], extras: StepExtras) -> int:
        """Compute as many known tokens of a sequence as the budget allows. Returns their number."""
        before = int(self._slots.computed[seq.slot])
        start = self._cache.reuse_cached(seq, before)
        if seq.penalised and start > before:
            extras.history.append((seq.slot, before, seq.array(before, start)))
        known = seq.to_compute
        end = min(known, start + budget)
        score_from = max(start, seq.unscored)
        score_to = max(score_from, min(end, seq.to_score))
        if score_to > score_from:
            seq.scored = score_to
        samples = end == known < seq.end and seq.ending is None
        chunks.append(PrefillChunk(seq, seq.epoch, start, end, score_from, score_to, samples))
        self._slots.computed[seq.slot] = end
        self._cache.publish(seq, end, step)
        return end - start

    # Parts of commit

    def _retire(self, plan: StepPlan) -> None:
        self._in_flight.remove(plan.step)
        self._committed = max(self._committed, plan.step)

    def _take_row(self, seq: Sequence, index: int, row: int, token: int, result: StepResult) -> list[Delta]:
        """Process the row of a sequence's token `index`, which was sampled, or scored because it was known. Returns a
        delta, or none if the caller has the token."""
        if token in (NOT_FINITE, NO_CHOICE):
            return [self._without_token(seq, token)]
        seq.filled = index
        if index == len(seq.tokens):
            append(seq, token)
            self._append_forced(seq)
        if seq.emitted > index:
            return []
        delta = emit(seq, index, row, result)
        if delta.finish_reason is not None:
            self._end(seq)
        return [delta]

    def _append_forced(self, seq: Sequence) -> None:
        """Append the tokens that the grammar of a sequence forces next; a running sequence computes them next."""
        if append_forced(seq) and seq.slot >= 0:
            self._running.prefill_known(seq)

    def _commit_chunk(self, chunk: PrefillChunk, tokens: list[int], result: StepResult) -> list[Delta]:
        seq = chunk.seq
        seq.filled = chunk.end
        found: list[Delta] = []
        row = chunk.row
        for position in range(chunk.score_from, chunk.score_to):
            if tokens[row] == NOT_FINITE:
                return [self._without_token(seq, NOT_FINITE)]
            if position < seq.prompt_len - 1:
                assert seq.prompt_logprobs is not None
                count = seq.params.prompt_logprobs or 0
                seq.prompt_logprobs.append(token_logprobs(result, row, seq.tokens[position + 1], count))
            else:
                found += self._take_row(seq, position + 1, row, tokens[row], result)
            row += 1
        if chunk.samples:
            found += self._take_row(seq, chunk.end, row, tokens[row], result)
        elif chunk.end == seq.end:
            found.append(Delta(seq.id, finish_reason="length", cached_tokens=seq.cached))
            self._end(seq)
        if seq.slot >= 0:
            seq.filled = chunk.end
            self._cache.commit_blocks(seq, self._committed)
        if not found:
            return []
        delta = merged(found)
        if chunk.end == seq.prompt_len:
            delta.first_scheduled = seq.first_scheduled
            delta.prompt_logprobs = seq.prompt_logprobs
        return [delta]

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
        self.reset_cache()
        return delta

    def _fail(self, seq: Sequence, message: str, own: bool = False) -> Delta:
        cached = max(seq.cached, 0)
        self._end(seq, keep=False)
        return Delta(seq.id, finish_reason="error", error=message, request_fault=own, cached_tokens=cached)

    def _end(self, seq: Sequence, keep: bool = True) -> None:
        """Remove a sequence; its results in flight become invalid."""
        if seq.slot >= 0:
            self._release(seq, keep)
        else:
            self._waiting.remove(seq)
        del self._requests[seq.id]
        seq.epoch += 1

    def _release(self, seq: Sequence, keep: bool = True) -> None:
        """Release the slot and the blocks of a sequence."""
        slot = seq.slot
        self._cache.release(seq, self._committed, self._launched, keep)
        self._slots.release(slot)
        self._running.leave(seq)
