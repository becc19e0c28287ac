"""Chooses the token of a simulated row: a hash of the previous token, the position and, with a temperature, the
seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.kernels.ops import SampleInputs
from headrace.types import NO_CHOICE, NO_TOKEN

__all__ = ["choose"]


def choose(inputs: SampleInputs, count: int, vocab: int) -> npt.NDArray[np.int32]:
    """The tokens, int32 [count]; NO_TOKEN for scored rows. Bans and masks apply: the next allowed id is taken,
    cyclically; NO_CHOICE if none is allowed. Sampled tokens are written to the history."""
    history: npt.NDArray[np.int32] = np.asarray(inputs.history)
    out = np.full(count, NO_TOKEN, np.int32)
    for row in range(count):
        if inputs.target[row] != NO_TOKEN:
            continue
        slot, position = int(inputs.slot[row]), int(inputs.position[row])
        seed = int(inputs.seed[row]) if inputs.temperature[row] > 0 else 0
        before = int(history[slot, position - 1]) if position else 0
        start = _mix(_mix(_mix(seed) + position) + before) % vocab
        token = _next_allowed(inputs, row, start, vocab)
        out[row] = token
        if token >= 0 and position < history.shape[1]:
            history[slot, position] = token
    return out


def _next_allowed(inputs: SampleInputs, row: int, start: int, vocab: int) -> int:
    banned = (np.asarray(inputs.bias_row) == row) & np.isneginf(np.asarray(inputs.bias_value))
    if inputs.allowed_row[row] < 0 and not banned.any():
        return start
    mask: npt.NDArray[np.bool_] = np.ones(vocab, np.bool_)
    if inputs.allowed_row[row] >= 0:
        words: npt.NDArray[Any] = np.ascontiguousarray(inputs.allowed[int(inputs.allowed_row[row])])
        mask &= np.unpackbits(words.view(np.uint8), bitorder="little")[:vocab].astype(np.bool_)
    mask[np.asarray(inputs.bias_token)[banned]] = False
    free = np.flatnonzero(mask)
    return int(free[np.searchsorted(free, start) % len(free)]) if len(free) else NO_CHOICE


def _mix(value: int) -> int:
    """The finalizer of SplitMix64 (Steele et al., OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)
