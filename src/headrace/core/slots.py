"""What the running sequences are, as arrays: one column a device slot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.core.constraints import Constraints
from headrace.core.sequence import Sequence

__all__ = ["Slots"]

TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY = range(6)
TOP_K, PROMPT_LEN, LOGPROBS, LAST = range(4)
SEED_BITS = 0xFFFF_FFFF_FFFF_FFFF


class Slots:
    """A plan's parameter arrays are gathered from here by slot."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.free = list(range(num_slots - 1, -1, -1))
        self.floats: npt.NDArray[np.float32] = np.zeros((6, num_slots), np.float32)
        self.ints: npt.NDArray[np.int32] = np.zeros((4, num_slots), np.int32)
        """top_k, prompt length, alternatives to report (-1: no logprobs), and the last position to be computed."""
        self.seeds: npt.NDArray[np.uint64] = np.zeros(num_slots, np.uint64)
        self.computed: npt.NDArray[np.int32] = np.zeros(num_slots, np.int32)
        """Positions that launched steps compute."""
        self.constraints: list[Constraints | None] = [None] * num_slots

    def enter(self, seq: Sequence, computed: int) -> None:
        """Describe a sequence that has just been given the slot at the end of `free`."""
        slot, params = self.free.pop(), seq.params
        assert slot == seq.slot
        self.floats[:, slot] = (
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        logprobs = -1 if params.logprobs is None else params.logprobs
        self.ints[:, slot] = (params.top_k, seq.prompt_len, logprobs, seq.end - 2)
        self.seeds[slot] = (params.seed or 0) & SEED_BITS
        self.computed[slot] = computed
        self.constraints[slot] = Constraints.of(seq, self._vocab_size) if seq.special else None

    def leave(self, slot: int) -> None:
        self.free.append(slot)
