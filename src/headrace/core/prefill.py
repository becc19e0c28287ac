"""Prefill: spends what is left of a step's budget on known tokens of waiting and running sequences."""

from __future__ import annotations

from collections import deque

from headrace.core.kv_cache import KVCache
from headrace.core.open_sequences import OpenSequences
from headrace.core.prefill_chunk import PrefillChunk
from headrace.core.running import RunningSequences, urgency
from headrace.core.sequence import Sequence
from headrace.core.slots import Slots
from headrace.core.step_record import StepExtras
from headrace.core.successors import Successors
from headrace.core.waiting_queue import WaitingQueue

__all__ = ["Prefill"]


class Prefill:
    """Admits waiting sequences and cuts their known tokens into chunks."""

    def __init__(
        self,
        waiting: WaitingQueue,
        running: RunningSequences,
        slots: Slots,
        cache: KVCache,
        open_sequences: OpenSequences,
        successors: Successors,
    ) -> None:
        self._successors = successors
        self._waiting, self._running, self._slots, self._cache = waiting, running, slots, cache
        self._open = open_sequences
        self._cached_tokens = self._prompt_tokens = 0

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were served from the cache."""
        return self._cached_tokens + self._successors.cached_tokens

    @property
    def prompt_tokens(self) -> int:
        return self._prompt_tokens + self._successors.prompt_tokens

    def plan(
        self, step: int, committed: int, now: float, budget: int, chunks: list[PrefillChunk], extras: StepExtras
    ) -> None:
        """Spend a budget of tokens: waiting sequences and those already running, in one order. `committed`: the last
        committed step."""
        for seq in self._successors.start():
            seq.cached, seq.first_scheduled = int(self._slots.computed[seq.slot]), seq.request.arrival
        begun = deque(self._running.prefilling())
        full = False
        while budget:
            first = self._waiting.first
            if first is not None and not full and not (begun and urgency(begun[0]) < (True, first.rank)):
                entered = self._admit(step, committed, now, extras)
                full = entered is None
                if entered is not None:
                    budget -= self._chunk(entered, step, budget, chunks, extras)
            elif begun:
                budget -= self._chunk(begun.popleft(), step, budget, chunks, extras)
            else:
                return

    def _admit(self, step: int, committed: int, now: float, extras: StepExtras) -> Sequence | None:
        """Start the next waiting sequence, if its known tokens fit. One block per running sequence is reserved for
        growth."""
        if not self._slots.free and not self._open:
            return None
        seq = self._waiting.pick(committed, lambda seq: self._estimate(seq, step))
        while seq is not None and (awaited := self._cache.awaited(seq)) > committed:
            seq.hold = awaited
            seq = self._waiting.pick(committed, lambda seq: self._estimate(seq, step))
        if seq is None or not (self._slots.free or self._open.free_slot()):
            return None
        while True:
            attached = self._cache.attach(seq, self._slots.free[-1], step, reserve=len(self._running))
            if attached is not None:
                break
            if not self._open.free_blocks():
                return None
        self._waiting.remove(seq)
        self._slots.assign(seq, attached.cached)
        self._running.enter(seq)
        if attached.copy is not None:
            extras.copies.append(attached.copy)
        if (seq.penalised or seq.placed) and attached.cached:
            extras.history.append((seq.slot, 0, seq.array(0, attached.cached)))
        if seq.cached < 0:
            seq.cached, seq.first_scheduled = attached.cached, now
            self._cached_tokens += attached.cached
            self._prompt_tokens += seq.prompt_len
        return seq

    def resume(self, seq: Sequence) -> bool:
        """Start a new sequence in the place of the open one that it extends. False: it must wait as any other."""
        computed = self._open.go_on(seq)
        if computed is None:
            return False
        self._running.enter(seq)
        seq.cached, seq.first_scheduled = computed, seq.request.arrival
        self._cached_tokens += computed
        self._prompt_tokens += seq.prompt_len
        return True

    def _estimate(self, seq: Sequence, step: int) -> int:
        if seq.estimated_at != step:
            seq.estimate, seq.estimated_at = self._cache.estimate(seq), step
        return seq.estimate

    def _chunk(self, seq: Sequence, step: int, budget: int, chunks: list[PrefillChunk], extras: StepExtras) -> int:
        """Compute as many known tokens of a sequence as the budget allows. Returns their number."""
        before = int(self._slots.computed[seq.slot])
        start = self._cache.reuse_cached(seq, before)
        recorded = 0 if seq.resumed else before
        seq.resumed = False
        if (seq.penalised or seq.placed) and start > recorded:
            extras.history.append((seq.slot, recorded, seq.array(recorded, start)))
        known = seq.to_compute
        end = min(known, start + budget)
        score_from = max(start, seq.unscored)
        rivals = seq.rivals_at(score_from, end)
        if len(rivals) > budget - (end - start):
            # Their rows need as much room as tokens: they come with the next step's chunk, which begins with them.
            end, rivals = max(start, min(end, score_from)), ()
            if end == start:
                self._slots.computed[seq.slot] = start
                return 0
        score_to = max(score_from, min(end, seq.to_score))
        if score_to > score_from:
            seq.scored = score_to
        if seq.pool is not None:
            seq.pool.planned = max(seq.pool.planned, end)
        samples = end == known < seq.end and seq.ending is None
        chunks.append(PrefillChunk(seq, seq.epoch, start, end, score_from, score_to, samples, rivals=rivals))
        self._slots.computed[seq.slot] = end
        self._cache.publish(seq, end, step)
        if score_to > score_from:
            self._cache.expect(seq, step)
        return end - start + len(rivals)
