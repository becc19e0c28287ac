"""The parameters of the running sequences as arrays, with one column per device slot."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from headrace.core.constraints import Constraints
from headrace.core.sequence import Sequence
from headrace.sampling import FLOAT_ROWS, INT_ROWS, SamplingParams
from headrace.types import SamplingBatch

__all__ = ["Slots", "parameters"]

PROMPT_LEN, LOGPROBS, LAST = range(len(INT_ROWS), len(INT_ROWS) + 3)
_float_values: Callable[[SamplingParams], tuple[float, ...]] = attrgetter(*FLOAT_ROWS)
NO_INTS: npt.NDArray[np.int32] = np.zeros(0, np.int32)
SEED_BITS = 0xFFFF_FFFF_FFFF_FFFF


class Slots:
    """The parameter arrays from which plans gather columns by slot."""

    def __init__(self, num_slots: int) -> None:
        self.free = list(range(num_slots - 1, -1, -1))
        self.floats: npt.NDArray[np.float32] = np.zeros((len(FLOAT_ROWS), num_slots), np.float32)
        self.ints: npt.NDArray[np.int32] = np.zeros((len(INT_ROWS) + 3, num_slots), np.int32)
        """The parameters of `INT_ROWS`, prompt length, alternatives to report (-1: no logprobs), and the last position
        to compute."""
        self.seeds: npt.NDArray[np.uint64] = np.zeros(num_slots, np.uint64)
        self.computed: npt.NDArray[np.int32] = np.zeros(num_slots, np.int32)
        """The number of positions that launched steps compute."""
        self.constraints: list[Constraints | None] = [None] * num_slots

    def assign(self, seq: Sequence, computed: int) -> None:
        """Assign the slot at the end of `free` to a sequence and store its parameters."""
        slot = self.free.pop()
        assert slot == seq.slot
        self.store(slot, seq, computed)

    def store(self, slot: int, seq: Sequence, computed: int) -> None:
        """Store the parameters of the sequence that has this slot."""
        params = seq.params
        self.floats[:, slot] = _float_values(params)
        logprobs = -1 if params.logprobs is None else params.logprobs
        self.ints[:, slot] = (*(getattr(params, name) for name in INT_ROWS), seq.prompt_len, logprobs, seq.end - 2)
        self.seeds[slot] = (params.seed or 0) & SEED_BITS
        self.computed[slot] = computed
        self.constraints[slot] = seq.constraints

    def release(self, slot: int) -> None:
        self.free.append(slot)


def parameters(slots: Slots, index: npt.NDArray[np.intp]) -> SamplingBatch:
    """The parameters of the given slots, without positions or constraints."""
    floats, ints = slots.floats.take(index, axis=1), slots.ints.take(index, axis=1)
    return SamplingBatch(
        params={**dict(zip(FLOAT_ROWS, floats, strict=True)), **dict(zip(INT_ROWS, ints, strict=False))},
        seed=slots.seeds[index],
        position=NO_INTS,
        bias_row=NO_INTS,
        bias_token=NO_INTS,
        bias_value=np.zeros(0, np.float32),
    )
