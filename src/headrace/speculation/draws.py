"""The random numbers of sampling, on the host: with the draw of a token's seed and position, a drafter chooses what the
target will choose whenever their logits agree enough (arXiv:2408.07978)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["gumbel_noise"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def gumbel_noise(seeds: npt.NDArray[np.uint64], positions: Ints, tokens: Ints) -> Floats:
    """[N, K]: the noise that the operator `sample` adds to token `tokens` [N, K] at `positions` [N] under `seeds` [N].

    Word t mod 4 of Philox4x32-10 (Salmon et al., SC'11) with counter (t div 4, position, 0, 0) and the halves of the
    seed as key, as `kernels.sample.philox` states it; logarithms may differ in their last bit.
    """
    counter = [
        (tokens >> 2).astype(np.uint64),
        np.broadcast_to(positions.astype(np.uint64)[:, None] & _MASK, tokens.shape),
        np.zeros(tokens.shape, np.uint64),
        np.zeros(tokens.shape, np.uint64),
    ]
    words = np.stack(_philox(counter, seeds[:, None] & _MASK, seeds[:, None] >> _SHIFT))
    word = np.take_along_axis(words, (tokens & 3)[None], 0)[0]
    uniform = (word.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    uniform = np.minimum(uniform, np.float32(1 - 2.0**-24))
    noise: Floats = -np.log(-np.log1p(-uniform))
    return noise


def _philox(counter: list[Words], low: Words, high: Words) -> list[Words]:
    c0, c1, c2, c3 = counter
    for _ in range(10):
        even, odd = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (odd >> _SHIFT) ^ c1 ^ low, odd & _MASK, (even >> _SHIFT) ^ c3 ^ high, even & _MASK
        low, high = (low + np.uint64(0x9E3779B9)) & _MASK, (high + np.uint64(0xBB67AE85)) & _MASK
    return [c0, c1, c2, c3]
