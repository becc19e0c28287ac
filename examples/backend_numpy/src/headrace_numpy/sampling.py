"""`sample`: biases, masks, penalties, then the most likely token or a draw, exactly as the contract's reference has
it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.kernels.ops import Batch, SampleInputs, SampleOutputs
from headrace.types import NO_CHOICE, NO_TOKEN, NOT_FINITE

__all__ = ["sample"]

Array = npt.NDArray[Any]
_GREEDY_BELOW = 1e-5
_MASK = np.uint64(0xFFFFFFFF)


def sample(logits: Array, inputs: SampleInputs, batch: Batch, num_logprobs: int) -> SampleOutputs:
    rows, padded = int(batch.sizes[2]), len(logits)
    raw = _finite(logits[:rows])
    given: Any = inputs
    tokens, width = np.full(padded, NO_TOKEN, np.int32), min(max(num_logprobs, 0), logits.shape[1])
    logprobs, ranks = np.zeros(padded, np.float32), np.zeros(padded, np.int32)
    top_ids, top_logprobs = np.zeros((padded, width), np.int32), np.zeros((padded, width), np.float32)
    for row in range(rows):
        token = int(given.target[row])
        if not _sound(logits[row]):
            tokens[row] = NOT_FINITE  # an error ends the request, and nobody reads its scores
            continue
        if token == NO_TOKEN:
            token = tokens[row] = _choose(raw[row], given, row)
            if token == NO_CHOICE:
                continue
            if given.position[row] < given.history.shape[1]:
                given.history[given.slot[row], given.position[row]] = token
        if num_logprobs < 0:
            continue
        shifted = raw[row] - raw[row].max()
        shifted = shifted - np.log(np.exp(shifted).sum(dtype=np.float32))
        logprobs[row], ranks[row] = shifted[token], 1 + int((raw[row] > raw[row][token]).sum())
        top_ids[row] = np.argsort(-raw[row], kind="stable")[:width]
        top_logprobs[row] = shifted[top_ids[row]]
    return SampleOutputs(tokens, logprobs, ranks, top_ids, top_logprobs)  # type: ignore[arg-type]


def _finite(logits: Array) -> Array:
    """NaN counts as -inf and +inf as the largest float; a row without a finite logit as zeros."""
    clean = np.nan_to_num(logits.astype(np.float32), nan=-np.inf, posinf=np.finfo(np.float32).max, neginf=-np.inf)
    return np.where(np.isneginf(clean.max(-1, keepdims=True)), np.float32(0), clean)


def _sound(logits: Array) -> bool:
    """No NaN, no +inf, and something that is not -inf."""
    return bool(np.all(logits < np.inf) and np.any(logits > -np.inf))


def _choose(raw: Array, inputs: Any, row: int) -> int:
    logits = _constrain(raw, inputs, row)
    if np.isneginf(logits.max()):
        return NO_CHOICE
    temperature = np.float32(inputs.temperature[row])
    if temperature < _GREEDY_BELOW:
        return int(logits.argmax())
    scaled = (logits - logits.max()) / temperature
    kept = _truncate(scaled, int(inputs.top_k[row]), float(inputs.min_p[row]), float(inputs.top_p[row]))
    return int((kept + _gumbel(int(inputs.seed[row]), int(inputs.position[row]), len(raw))).argmax())


def _constrain(raw: Array, inputs: Any, row: int) -> Array:
    out = raw.copy()
    mine = inputs.bias_row == row
    np.add.at(out, inputs.bias_token[mine], inputs.bias_value[mine])
    if inputs.allowed_row[row] >= 0:
        words = inputs.allowed[inputs.allowed_row[row]].astype(np.int64)
        bits = (words[:, None] >> np.arange(32)) & 1
        out[bits.reshape(-1)[: len(out)] == 0] = -np.inf
    repetition, presence, frequency = (
        np.float32(inputs.repetition_penalty[row]),
        np.float32(inputs.presence_penalty[row]),
        np.float32(inputs.frequency_penalty[row]),
    )
    if (repetition, presence, frequency) == (1, 0, 0):
        return out
    tokens = inputs.history[inputs.slot[row], : inputs.position[row]]
    counts = np.bincount(tokens[inputs.prompt_len[row] :], minlength=len(out))[: len(out)].astype(np.float32)
    seen = np.bincount(tokens, minlength=len(out))[: len(out)] > 0
    out = np.where(seen, np.where(out > 0, out / repetition, out * repetition), out)
    return out - presence * (counts > 0).astype(np.float32) - frequency * counts


def _truncate(scaled: Array, top_k: int, min_p: float, top_p: float) -> Array:
    """-inf for what top-k, min-p and top-p cut, in this order."""
    order = np.argsort(-scaled, kind="stable")
    if 0 < top_k < len(scaled):
        order = order[:top_k]
    weight = np.exp(scaled[order])
    kept = weight >= np.float32(min_p)
    if top_p < 1:
        sums = np.where(kept, weight, 0).astype(np.float64).cumsum()
        kept &= sums - weight < top_p * sums[-1]
        kept[0] = True
    out = np.full_like(scaled, -np.inf)
    out[order[kept]] = scaled[order[kept]]
    return out


def _gumbel(seed: int, position: int, vocab: int) -> Array:
    """The noise of `headrace.kernels.sample.philox`: Philox4x32-10 keyed by the seed, counted by token and position."""
    quads = np.arange(-(-vocab // 4), dtype=np.uint64)
    zero = np.zeros_like(quads)
    c = [quads, zero + np.uint64(position & 0xFFFFFFFF), zero, zero]
    k0, k1 = np.uint64(seed & 0xFFFFFFFF), np.uint64((seed >> 32) & 0xFFFFFFFF)
    half = np.uint64(32)
    for _ in range(10):
        even, odd = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(odd >> half) ^ c[1] ^ k0, odd & _MASK, (even >> half) ^ c[3] ^ k1, even & _MASK]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _MASK, (k1 + np.uint64(0xBB67AE85)) & _MASK
    word = np.stack(c, -1).reshape(-1)[:vocab].astype(np.float32)
    u = np.minimum((word + np.float32(0.5)) * np.float32(2.0**-32), np.float32(1 - 2.0**-24))
    return -np.log(-np.log1p(-u))
