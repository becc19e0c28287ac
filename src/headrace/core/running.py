"""The running sequences, by what each computes in the next step."""

from __future__ import annotations

import numpy as np

from headrace.core.decodes import Decodes
from headrace.core.prefill_chunk import PrefillChunk
from headrace.core.sequence import Rank, Sequence
from headrace.core.slots import Slots

__all__ = ["RunningSequences", "urgency"]


class RunningSequences:
    """All sequences that have a slot. One that neither prefills nor decodes waits for its last commit.

    A pipeline of `stages` has so many steps in flight, of different sequences: one whose next token is in flight leaves
    the lists until that is committed, and a step takes a share of the sequences that decode.
    """

    def __init__(self, slots: Slots, block_size: int, stages: int = 1) -> None:
        self._slots, self._block_size, self._stages = slots, block_size, stages
        self._by_id: dict[str, Sequence] = {}
        self._prefilling: list[Sequence] = []
        self._decoding: list[Sequence] = []
        """Sequences that compute one token in the next step."""
        self._decodes: Decodes | None = None
        """`_decoding` as arrays; None when the list has changed."""
        self._held: list[Sequence] = []
        """Sequences that compute their newest token together with drafts: once it is committed, or at once if the
        device places them."""
        self._in_flight: dict[int, Sequence] = {}
        """By id of the object, in a pipeline: sequences whose next token is in flight."""

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

    def rejoin(self, seq: Sequence) -> None:
        """Add a sequence whose last token is in flight."""
        self._by_id[seq.id] = seq

    def leave(self, seq: Sequence) -> None:
        """Remove a sequence that has released its slot."""
        del self._by_id[seq.id]
        self._in_flight.pop(id(seq), None)
        seq.wrong += seq.uncertain
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
        if self._stages > 1:
            return self._landed()[: self._share()]
        return [seq for seq in self._held if not seq.placed or self.most_known(seq) < seq.end]

    def most_known(self, seq: Sequence) -> int:
        """The number of tokens that a sequence of `growing` has before the next step, if all drafts in flight are
        right."""
        return int(self._slots.computed[seq.slot]) + 1 if seq.placed else len(seq.tokens)

    def waits(self) -> bool:
        """A sequence that is held has a token in flight: the next step should contain its drafts."""
        return self._stages == 1 and any(not seq.placed and self._awaits(seq) for seq in self._held)

    def land(self) -> None:
        """Let sequences go on whose token has been committed, in a pipeline."""
        for seq in [seq for seq in self._in_flight.values() if not self._awaits(seq)]:
            del self._in_flight[id(seq)]
            self._enter_lists(seq)

    def _landed(self) -> list[Sequence]:
        """The sequences to verify drafts of that have no token in flight."""
        return [seq for seq in self._held if not self._awaits(seq)]

    def _awaits(self, seq: Sequence) -> bool:
        """A token of the sequence is in flight."""
        return bool(self._slots.computed[seq.slot] >= len(seq.tokens))

    def _share(self) -> int:
        """The most sequences that one step of a pipeline decodes, and verifies drafts of."""
        return -(-(len(self._decoding) + len(self._held) + len(self._in_flight)) // self._stages)

    def prefill_known(self, seq: Sequence) -> None:
        """Compute known tokens of a sequence next, which have been appended."""
        if seq in self._decoding:
            self._decoding.remove(seq)
            self._decodes = None
        elif seq in self._held:
            self._held.remove(seq)
        self._in_flight.pop(id(seq), None)
        if seq not in self._prefilling and self._slots.computed[seq.slot] < seq.to_compute:
            self._prefilling.append(seq)

    def decodes(self) -> Decodes:
        """The sequences that compute one token each, as arrays."""
        if self._decodes is None:
            seqs = list(self._decoding) if self._stages == 1 else self._decoding[: self._share()]
            self._decodes = Decodes(seqs, self._slots, self._block_size, known=self._stages > 1)
        return self._decodes

    def prefilling(self) -> list[Sequence]:
        """The sequences that have known tokens to compute, the most urgent first."""
        return sorted(self._prefilling, key=urgency)

    def growing(self) -> list[Sequence]:
        """The sequences that prefill tokens for which no block was allocated when they entered."""
        held = self._landed() if self._stages > 1 else self.held()
        return sorted([*held, *(seq for seq in self._prefilling if seq.matcher is not None)], key=_rank)

    def advance(self, decodes: Decodes, chunks: list[PrefillChunk]) -> None:
        """Move sequences between the lists, as if a plan had been executed."""
        if len(decodes):
            self._slots.computed[decodes.index] = decodes.positions
            if self._stages > 1:
                self._decoding = self._decoding[len(decodes) :]
                self._decodes = None
                for seq in decodes.seqs:
                    self._continue(seq)
            elif decodes.until_end < 0:
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
        """Go on with a sequence whose newest token is in flight: in a pipeline, once that has been committed."""
        if self._stages > 1:
            self._in_flight[id(seq)] = seq
        else:
            self._enter_lists(seq)

    def _enter_lists(self, seq: Sequence) -> None:
        """Decode a sequence, or hold it for its drafts."""
        if self._slots.computed[seq.slot] >= seq.end - 1:
            return
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
