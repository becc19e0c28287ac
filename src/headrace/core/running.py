"""The running sequences, by what each computes in the next step."""

from __future__ import annotations

import numpy as np

from headrace.core.plan_builder import Decodes, PrefillChunk
from headrace.core.sequence import Rank, Sequence
from headrace.core.slots import Slots

__all__ = ["RunningSequences", "urgency"]


class RunningSequences:
    """All sequences that have a slot. One that neither prefills nor decodes waits for its last commit."""

    def __init__(self, slots: Slots, block_size: int) -> None:
        self._slots, self._block_size = slots, block_size
        self._by_id: dict[str, Sequence] = {}
        self._prefilling: list[Sequence] = []
        self._decoding: list[Sequence] = []
        """Sequences that compute one token in the next step."""
        self._decodes: Decodes | None = None
        """`_decoding` as arrays; None when the list has changed."""
        self._held: list[Sequence] = []
        """Sequences that compute their newest token together with drafts: once it is committed, or at once if the
        device places them."""

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[Sequence]:
        return list(self._by_id.values())

    def last(self) -> Sequence:
        """The one to preempt first."""
        return max(self._by_id.values(), key=_rank)

    def enter(self, seq: Sequence) -> None:
        """Add a sequence that has got its slot; it computes its known tokens first."""
        self._by_id[seq.id] = seq
        self._prefilling.append(seq)

    def leave(self, seq: Sequence) -> None:
        """Remove a sequence that has released its slot."""
        del self._by_id[seq.id]
        seq.uncertain = 0
        if seq in self._decoding:
            self._decoding.remove(seq)
            self._decodes = None
        elif seq in self._prefilling:
            self._prefilling.remove(seq)
        elif seq in self._held:
            self._held.remove(seq)

    def hold(self, seq: Sequence) -> None:
        """Let the next step of a sequence verify drafts: once its newest token is committed, or at once if the device
        places it."""
        seq.held = True
        if seq in self._decoding:
            self._decoding.remove(seq)
            self._decodes = None
            self._held.append(seq)

    def unhold(self, seq: Sequence) -> None:
        """Let a sequence whose newest token was scheduled decode without waiting again."""
        seq.held = False
        self._held.remove(seq)
        if self._slots.computed[seq.slot] < seq.end - 1:
            self._continue(seq)

    def held(self) -> list[Sequence]:
        """The sequences that verify drafts in the next step. One that is placed may have computed its last token, as
        far as is known; if not all drafts before it were right, it goes on after a commit."""
        return [seq for seq in self._held if not seq.placed or self.most_known(seq) < seq.end]

    def most_known(self, seq: Sequence) -> int:
        """The number of tokens that a sequence of `growing` has before the next step, if all drafts in flight are
        right."""
        return int(self._slots.computed[seq.slot]) + 1 if seq.placed else len(seq.tokens)

    def waits(self) -> bool:
        """A sequence that is held has a token in flight: the next step should contain its drafts."""
        return any(not seq.placed and self._slots.computed[seq.slot] >= len(seq.tokens) for seq in self._held)

    def prefill_known(self, seq: Sequence) -> None:
        """Compute known tokens of a sequence next, which have been appended."""
        if seq in self._decoding:
            self._decoding.remove(seq)
            self._decodes = None
        elif seq in self._held:
            self._held.remove(seq)
        if seq not in self._prefilling and self._slots.computed[seq.slot] < seq.to_compute:
            self._prefilling.append(seq)

    def decodes(self) -> Decodes:
        """The sequences that compute one token each, as arrays."""
        if self._decodes is None:
            self._decodes = Decodes(list(self._decoding), self._slots, self._block_size)
        return self._decodes

    def prefilling(self) -> list[Sequence]:
        """The sequences that have known tokens to compute, the most urgent first."""
        return sorted(self._prefilling, key=urgency)

    def growing(self) -> list[Sequence]:
        """The sequences that prefill tokens for which no block was allocated when they entered."""
        return sorted([*self.held(), *(seq for seq in self._prefilling if seq.matcher is not None)], key=_rank)

    def advance(self, decodes: Decodes, chunks: list[PrefillChunk]) -> None:
        """Move sequences between the lists, as if a plan had been executed."""
        if len(decodes):
            self._slots.computed[decodes.index] = decodes.positions
            if decodes.until_end < 0:
                ended = decodes.positions > decodes.last
                finished = {id(decodes.seqs[at]) for at in np.flatnonzero(ended).tolist()}
                self._decoding = [seq for seq in self._decoding if id(seq) not in finished]
                self._decodes = None
        for chunk in chunks:
            if not chunk.verifies and chunk.end == chunk.seq.to_compute:
                self._prefilling.remove(chunk.seq)
                if chunk.samples and chunk.end < chunk.seq.end - 1:
                    self._continue(chunk.seq)

    def _continue(self, seq: Sequence) -> None:
        """Decode a sequence, or hold it for its drafts."""
        if seq.held:
            self._held.append(seq)
        else:
            self._decoding.append(seq)
            self._decodes = None


def urgency(seq: Sequence) -> tuple[bool, Rank]:
    """The order of prefill: the forced tokens within a text come first, as decodes do."""
    return seq.matcher is None or seq.emitted == seq.prompt_len, seq.rank


def _rank(seq: Sequence) -> Rank:
    return seq.rank
