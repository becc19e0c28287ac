"""The sequences of a step that compute one token each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.core.named_rows import name_rows
from headrace.core.sequence import Sequence
from headrace.core.slots import LAST, LOGPROBS, PROMPT_LEN, Slots, parameters
from headrace.types import NO_TOKEN

__all__ = ["Decodes"]

Ints = npt.NDArray[np.int32]
_NEVER = np.iinfo(np.int32).max


class Decodes:
    """The sequences that compute one token each, as arrays. Built again when their set changes; a step only advances
    them."""

    def __init__(self, seqs: list[Sequence], slots: Slots, block_size: int, known: bool = False) -> None:
        """`known`: the last token of each has been committed, and the plan has it."""
        self.seqs = seqs
        self.epochs = [seq.epoch for seq in seqs]
        self.slots: Ints = np.array([seq.slot for seq in seqs], np.int32)
        self.index = self.slots.astype(np.intp)
        self.positions: Ints = slots.computed[self.index]
        """The position that the next step computes, per sequence."""
        count = len(seqs)
        ints = slots.ints.take(self.index, axis=1)
        self.last: Ints = ints[LAST]
        self.prompt_lens: Ints = ints[PROMPT_LEN]
        self.ids = tuple(seq.id for seq in seqs)
        self.no_tokens: Ints = np.full(count, NO_TOKEN, np.int32)
        self.token_ids: Ints = np.array([seq.tokens[-1] for seq in seqs], np.int32) if known else self.no_tokens
        self.starts: Ints = np.arange(count + 1, dtype=np.int32)
        self.rows: Ints = self.starts[:count]
        self.special = [(i, own) for i, seq in enumerate(seqs) if (own := slots.constraints[seq.slot]) is not None]
        self.sampling = parameters(slots, self.index)
        self.sampling.num_logprobs = int(ints[LOGPROBS].max(initial=-1))
        name_rows(self.sampling, [seq.params.logprob_token_ids for seq in seqs])
        self._block_size = block_size
        self.longest = int(self.positions.max(initial=-1))
        """The last position that the next step computes."""
        self.until_end = int((self.last - self.positions).min(initial=_NEVER))
        """Steps until one of them computes its last position; below 0: one has computed it."""
        self.until_start = self._until_start()
        """Steps until one of them begins a block."""

    def __len__(self) -> int:
        return len(self.seqs)

    def advance(self, positions: Ints) -> None:
        """Advance to the step after the next one; it computes `positions`."""
        if not self.seqs:
            return
        self.positions = positions
        self.longest += 1
        self.until_end -= 1
        self.until_start = self.until_start - 1 if self.until_start else self._until_start()

    def _until_start(self) -> int:
        return int((-self.positions % self._block_size).min(initial=_NEVER))
