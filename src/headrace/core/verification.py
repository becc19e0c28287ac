"""Verification of drafts: what the scheduler does for sequences whose next tokens are guessed."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.admission import CoreConfig
from headrace.core.block_pool import blocks_for
from headrace.core.constraints import Constraints
from headrace.core.decodes import Decodes
from headrace.core.drafts import DraftRow, DraftSource, StepSize
from headrace.core.kv_cache import KVCache
from headrace.core.matcher import advance, allows, forced
from headrace.core.prefill_chunk import PrefillChunk
from headrace.core.running import RunningSequences
from headrace.core.sequence import Sequence
from headrace.core.slots import Slots
from headrace.types import NO_TOKEN, ON_DEVICE

__all__ = ["Verification"]


class Verification:
    """Asks a source for drafts and adds them to steps. A sequence with drafts is held: it has no token in flight when
    its drafts are planned, so the steps of an engine with held sequences don't overlap.

    A sequence is *placed* instead if the device makes its drafts, and knows its length: the next step is planned while
    it is not known how many drafts of this one are right. The plan has upper bounds of its positions, which a commit
    lowers by the number of drafts that were wrong; its blocks suffice for the bounds. What wrong drafts have written is
    overwritten before it is read, because the next step begins behind the last right token.

    While no sequence is held, the source says for how many steps it need not be asked. Nothing is done for it then:
    with many sequences that do not draft, this work would come in every step, on cores that a device may compute with.
    """

    def __init__(
        self, source: DraftSource, config: CoreConfig, running: RunningSequences, slots: Slots, cache: KVCache
    ) -> None:
        self._source, self._config = source, config
        self._running, self._slots, self._cache = running, slots, cache
        self._drafted = 0
        """Sequences that may have drafts."""
        self._rest = 0
        """Steps for which the source need not be asked."""

    def begin(self, seq: Sequence) -> None:
        """Take up a new sequence."""
        if seq.request.max_drafts != 0:
            seq.drafted = self._source.begin(seq.request)
            if not self._drafted or seq.request.predicted:
                self._rest = 0
            self._drafted += seq.drafted
            # Masks of a grammar and bans up to a position need positions that the host knows.
            free = seq.matcher is None and (seq.constraints is None or not seq.params.min_tokens)
            seq.placed = seq.drafted and free and self._source.places(seq.request)

    def pause(self, seq: Sequence, keep: bool) -> None:
        """A sequence has lost its slot and goes back in the queue; `keep` as for `DraftSource.pause`."""
        if seq.drafted:
            self._source.pause(seq.id, keep)

    def end(self, seq: Sequence, keep: bool) -> None:
        if seq.drafted:
            self._tell([seq])
            self._source.end(seq.id, keep)
            self._drafted -= 1

    def _tell(self, seqs: Iterable[Sequence]) -> None:
        """Tell the source new tokens. If drafts have become worth it, the next step of a sequence verifies some."""
        told = [seq for seq in seqs if seq.drafted and seq.told < len(seq.tokens)]
        for seq in told:
            ahead = int(self._slots.computed[seq.slot]) - len(seq.tokens) + 1 if seq.slot >= 0 else 0
            tokens, seq.told = seq.tokens[seq.told :], len(seq.tokens)
            self._source.extend(seq.id, tokens, max(0, ahead))
        for seq in told:
            if seq.slot >= 0 and seq.ending is None and self._source.held(seq.id):
                self._running.hold(seq)
                self._rest = 0

    def plan(self, step: int, decodes: Decodes, held: list[Sequence], chunks: list[PrefillChunk]) -> None:
        """Add the sequences that are held to a step, each with the drafts that it verifies, within what is left of the
        budget."""
        if not self._drafted:
            return
        if self._rest > 0 and not held:
            self._rest -= 1
            return
        self._tell(held)
        size = _size(decodes, held, chunks)
        share = (self._config.max_num_batched_tokens - size.tokens) // max(len(held), 1)
        rows = [self._row(seq, share) for seq in held]
        for seq, drafts in zip(held, self._source.draft(step, size, rows), strict=True):
            if seq.placed:
                chunks.append(self._placed(seq, len(drafts)))
                continue
            end = len(seq.tokens)
            states = _draft_states(seq, drafts, self._slots.constraints[seq.slot])
            allowed = drafts[: len(states) - 1] if states else drafts
            chunks.append(PrefillChunk(seq, seq.epoch, end - 1, end, end, end, True, 0, True, allowed, states))
            self._slots.computed[seq.slot] = end
            self._cache.publish(seq, end, step)
            if not drafts and not self._source.held(seq.id):
                self._running.unhold(seq)
        if not any(seq.held for seq in self._running.all()):
            self._rest = self._source.rest()

    def commit(self, step: int, chunks: list[PrefillChunk]) -> None:
        """Report what was accepted in a step, and continue after the accepted tokens."""
        ours = [chunk for chunk in chunks if chunk.verifies]
        if not (self._drafted or ours):
            return
        new = [chunk.seq for chunk in chunks if chunk.seq.told == chunk.seq.prompt_len]
        resting = self._rest > 0 and not ours
        self._tell(new if resting else self._running.all())
        if self._rest > 0 and new:
            self._rest = min(self._rest, self._source.rest())
        if resting:
            return
        for chunk in chunks:
            seq = chunk.seq
            if chunk.accepted is None or seq.slot < 0:
                continue
            if chunk.length is not None:
                self._slots.computed[seq.slot] -= chunk.planned - chunk.accepted
                seq.uncertain -= chunk.planned
                seq.wrong += chunk.planned - chunk.accepted
            elif chunk.drafts:
                self._slots.computed[seq.slot] = chunk.end + chunk.accepted
        self._source.verified(step, [chunk.accepted for chunk in ours], [len(chunk.drafts) for chunk in ours])

    def _placed(self, seq: Sequence, drafts: int) -> PrefillChunk:
        """The rows of a sequence that the device places, and the state after them."""
        end = self._running.most_known(seq)
        length = ON_DEVICE if seq.uncertain else end
        self._slots.computed[seq.slot] = end + drafts
        seq.uncertain += drafts
        if not seq.uncertain and not self._source.held(seq.id):
            self._running.unhold(seq)
        guesses = [NO_TOKEN] * drafts
        return PrefillChunk(seq, seq.epoch, end - 1, end, end, end, True, 0, True, guesses, length=length)

    def _row(self, seq: Sequence, share: int) -> DraftRow:
        known = self._running.most_known(seq)
        most = self._room(seq, known, share)
        ahead = known - len(seq.tokens) if seq.placed else None
        table = self._cache.table[seq.slot, : seq.blocks]
        return DraftRow(seq.id, most, known + 1, seq.slot, table, ahead, seq.uncertain, seq.wrong)

    def _room(self, seq: Sequence, known: int, most: int) -> int:
        """The number of drafts that a sequence may verify behind so many tokens; allocates the blocks for them, but
        preempts none."""
        most = min(most, seq.end - 1 - known, seq.request.max_drafts or most)
        while most > 0 and seq.blocks < blocks_for(known + most, self._config.block_size):
            if self._cache.available <= len(self._running) or not self._cache.grow(seq):
                break
        return min(most, seq.blocks * self._config.block_size - known)


def _size(decodes: Decodes, held: list[Sequence], chunks: list[PrefillChunk]) -> StepSize:
    """The step without drafts."""
    computed = [(chunk.end - chunk.start, chunk.start + chunk.end) for chunk in chunks]
    return StepSize(
        len(decodes) + len(held) + sum(count for count, _ in computed),
        len(decodes) + len(held) + sum(chunk.samples for chunk in chunks),
        int(decodes.positions.sum())
        + sum(len(seq.tokens) for seq in held)
        + sum(count * ends // 2 for count, ends in computed),
    )


def _draft_states(seq: Sequence, drafts: list[int], own: Constraints | None) -> list[tuple[Constraints, int]]:
    """The constraints of the row after the known tokens and of those after each draft, and the token that the grammar
    forces there. Empty without a grammar. It ends before the first draft that the grammar does not allow."""
    if seq.matcher is None or own is None:
        return []
    found, ahead = [(own, NO_TOKEN)], seq.matcher.copy()
    for draft in drafts:
        if not allows(ahead, draft) or advance(ahead, draft) is not None or ahead.stopped:
            break
        following = forced(ahead) if seq.forces else []
        must = following[0] if following and following[0] not in seq.stops else NO_TOKEN
        found.append((own.after(ahead), must))
    return found
