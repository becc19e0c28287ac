"""Takes the result of a step: the tokens of its rows become those of the sequences, and deltas of their requests."""

from __future__ import annotations

import numpy as np

from headrace.core.kv_cache import KVCache
from headrace.core.outcome import append, append_forced, emit, of_chunk, score_prompt
from headrace.core.prefill_chunk import PrefillChunk
from headrace.core.running import RunningSequences
from headrace.core.sequence import Sequence
from headrace.core.sequence_ends import SequenceEnds
from headrace.core.step_clock import StepClock
from headrace.core.step_record import StepRecord
from headrace.core.successors import Successors
from headrace.types import NO_TOKEN, NOT_FINITE, Delta, StepPlan, StepResult

__all__ = ["StepResults"]


class StepResults:
    """Takes the results of one scheduler's steps, in their order."""

    def __init__(
        self,
        clock: StepClock,
        running: RunningSequences,
        cache: KVCache,
        successors: Successors,
        ends: SequenceEnds,
    ) -> None:
        self._clock, self._running, self._cache = clock, running, cache
        self._successors, self._ends = successors, ends

    def take(self, plan: StepPlan, result: StepResult) -> list[Delta]:
        """The deltas of a step that has been retired; sequences that have ended are released."""
        launched: StepRecord = plan.tag
        tokens: list[int] = result.tokens.tolist()
        deltas = self._take_decodes(plan, tokens, result)
        for chunk in launched.settled(result):
            if chunk.seq.epoch == chunk.epoch:
                try:
                    deltas.extend(self._take_chunk(chunk, tokens, result))
                except Exception as error:
                    deltas.append(self._ends.fault(chunk.seq, error))
        return deltas

    def follow(self, seq: Sequence) -> None:
        """Append what the grammar of a sequence forces after its new tokens; a running sequence computes that next."""
        if append_forced(seq) and seq.slot >= 0:
            self._running.prefill_known(seq)

    def _take_decodes(self, plan: StepPlan, tokens: list[int], result: StepResult) -> list[Delta]:
        launched: StepRecord = plan.tag
        deltas: list[Delta] = []
        decodes = launched.decodes
        indices: list[int] = plan.sampling.position[: launched.count].tolist()
        for row, seq in enumerate(decodes.seqs):
            if seq.epoch == decodes.epochs[row]:
                try:
                    delta = self._take_row(seq, indices[row], row, tokens[row], result)
                    if delta is not None:
                        deltas.append(delta)
                except Exception as error:
                    deltas.append(self._ends.fault(seq, error))
        if launched.fills:
            for at in np.flatnonzero(launched.offsets == self._cache.block_size - 1).tolist():
                seq = decodes.seqs[at]
                if seq.slot >= 0:
                    self._cache.commit_blocks(seq, self._clock.committed)
        return deltas

    def _take_row(self, seq: Sequence, index: int, row: int, token: int, result: StepResult) -> Delta | None:
        """Process the row of a sequence's token `index`, which was sampled, or scored because it was known. Returns a
        delta, or None if the caller has the token."""
        if token < 0 and token != NO_TOKEN:
            return self._ends.without_token(seq, token)
        seq.filled = index
        if index == len(seq.tokens):
            append(seq, token)
            if seq.forces:
                self.follow(seq)
        if seq.emitted > index:
            return None
        delta = emit(seq, index, row, result)
        if delta.finish_reason is not None:
            delta.went_on = self._successors.settle(seq)
            self._ends.end(seq, opens=delta.error is None)
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

    def _take_chunk(self, chunk: PrefillChunk, tokens: list[int], result: StepResult) -> list[Delta]:
        seq, row, found = chunk.seq, chunk.row, list[Delta | None]()
        seq.filled = chunk.end
        if not chunk.pool(result):
            return [self._ends.without_token(seq, NOT_FINITE)]
        for position in range(chunk.score_from, chunk.score_to):
            if tokens[row] == NOT_FINITE:
                return [self._ends.without_token(seq, NOT_FINITE)]
            if position < seq.prompt_len - 1:
                row = score_prompt(seq, position, chunk.rivals if position == chunk.score_from else (), row, result)
            else:
                found.append(self._take_row(seq, position + 1, row, tokens[row], result))
                row += 1
        if chunk.samples:
            found += self._take_sampled(chunk, row, tokens, result)
        elif chunk.end == seq.end:
            found.append(Delta(seq.id, finish_reason="length", cached_tokens=seq.cached))
            self._ends.end(seq, opens=True)
        if seq.slot >= 0:
            seq.filled = max(chunk.end, seq.filled)
            self._cache.commit_blocks(seq, self._clock.committed)
        return of_chunk(found, chunk.end, seq)
