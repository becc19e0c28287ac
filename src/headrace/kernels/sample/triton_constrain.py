"""Biases, masks and penalties on the device, in the order of `constrain.py`. Requires triton.

A token is chosen from `work`, float32 [R, V]. `dead` int32 [R] is 1 for rows without a finite logit, which count as
zeros, 2 for other rows that hold NaN or +inf, and 0 for all others.
"""

from __future__ import annotations

import triton.language as tl
from triton.language import tensor

from headrace.kernels.tritonlib.device import jit, jit_varying

__all__ = ["bias_kernel", "clean", "clean_kernel", "count_kernel", "penalise_kernel"]

_SEEN = tl.constexpr(1 << 30)
"""Bit of a count: the token is in prompt or output. The other bits count the output."""


@jit
def clean(x: tensor) -> tensor:
    """Clean a logit: NaN counts as -inf, +inf as the largest float."""
    x = tl.where(x != x, float("-inf"), x)  # noqa: PLR0124
    return tl.minimum(x, 3.4028234663852886e38)


@jit
def _penalised(repetition: tensor, presence: tensor, frequency: tensor, row: tensor) -> tensor:
    return (tl.load(repetition + row) != 1.0) | (tl.load(presence + row) != 0.0) | (tl.load(frequency + row) != 0.0)


@jit
def clean_kernel(
    logits: tensor, work: tensor, counts: tensor, dead: tensor, sizes: tensor, repetition: tensor, presence: tensor,
    frequency: tensor, vocab: int, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per row: writes clean logits to `work`, and sets the row's counts to zero if it has penalties."""
    row = tl.program_id(0).to(tl.int64)
    if row < tl.load(sizes + 2):
        peak = tl.full([BLOCK], float("-inf"), tl.float32)
        broken = 0
        for start in range(0, vocab, BLOCK):
            token = start + tl.arange(0, BLOCK)
            inside = token < vocab
            raw = tl.load(logits + row * vocab + token, inside, float("-inf")).to(tl.float32)
            # Reduced at once: a second vector beside `peak` would halve the warps that run together.
            wrong = (raw != raw) | (raw == float("inf"))  # noqa: PLR0124
            broken = tl.maximum(broken, tl.max(wrong.to(tl.int32), 0))
            x = clean(raw)
            tl.store(work + row * vocab + token, x, inside)
            peak = tl.maximum(peak, x)
        none = tl.max(peak, 0) == float("-inf")
        tl.store(dead + row, tl.where(none, 1, 2 * broken))
        if none | _penalised(repetition, presence, frequency, row):
            for start in range(0, vocab, BLOCK):
                token = start + tl.arange(0, BLOCK)
                inside = token < vocab
                tl.store(counts + row * vocab + token, tl.zeros([BLOCK], tl.int32), inside)
                if none:
                    tl.store(work + row * vocab + token, tl.zeros([BLOCK], tl.float32), inside)


@jit
def count_kernel(
    counts: tensor, sizes: tensor, history: tensor, slot: tensor, position: tensor, prompt_len: tensor,
    repetition: tensor, presence: tensor, frequency: tensor, vocab: int, width: int, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per row with penalties: counts its tokens before `position`."""
    row = tl.program_id(0).to(tl.int64)
    if (row < tl.load(sizes + 2)) & _penalised(repetition, presence, frequency, row):
        tokens = history + tl.load(slot + row).to(tl.int64) * width
        end, prompt = tl.load(position + row), tl.load(prompt_len + row)
        for start in range(0, end, BLOCK):
            place = start + tl.arange(0, BLOCK)
            token = tl.load(tokens + place, place < end, 0)
            known = (place < end) & (token >= 0) & (token < vocab)
            target = counts + row * vocab + token
            tl.atomic_or(target, tl.zeros([BLOCK], tl.int32) + _SEEN, known)
            tl.atomic_add(target, tl.zeros([BLOCK], tl.int32) + 1, known & (place >= prompt))


@jit_varying("biases")
def bias_kernel(
    work: tensor, sizes: tensor, bias_row: tensor, bias_token: tensor, bias_value: tensor, vocab: int, biases: int,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per triplet. The first triplet of a row and token adds all of them, so that the order is fixed."""
    own = tl.program_id(0)
    row, token = tl.load(bias_row + own), tl.load(bias_token + own)
    if (row >= 0) & (row < tl.load(sizes + 2)):
        earlier, total = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.float32)
        for start in range(0, biases, BLOCK):
            other = start + tl.arange(0, BLOCK)
            inside = other < biases
            same = (tl.load(bias_row + other, inside, -1) == row) & (tl.load(bias_token + other, inside, 0) == token)
            earlier += (same & (other < own)).to(tl.int32)
            total += tl.where(same, tl.load(bias_value + other, inside, 0.0), 0.0)
        if tl.sum(earlier, 0) == 0:
            place = work + row.to(tl.int64) * vocab + token
            tl.store(place, tl.load(place) + tl.sum(total, 0))


@jit
def penalise_kernel(
    work: tensor, counts: tensor, sizes: tensor, allowed: tensor, allowed_row: tensor, repetition: tensor,
    presence: tensor, frequency: tensor, vocab: int, words: int, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per row and BLOCK tokens: -inf for masked tokens, then penalties."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if row < tl.load(sizes + 2):
        mask, place, inside = tl.load(allowed_row + row), work + row * vocab + token, token < vocab
        penalised = _penalised(repetition, presence, frequency, row)
        if (mask >= 0) | penalised:
            x = tl.load(place, inside, 0.0)
            if mask >= 0:
                word = tl.load(allowed + mask.to(tl.int64) * words + token // 32, inside, 0)
                x = tl.where((word >> (token % 32)) & 1 != 0, x, float("-inf"))
            if penalised:
                count = tl.load(counts + row * vocab + token, inside, 0)
                output = (count & (_SEEN - 1)).to(tl.float32)
                penalty = tl.zeros_like(x) + tl.load(repetition + row)
                repeated = tl.where(x > 0.0, tl.div_rn(x, penalty), x * penalty)
                x = tl.where(count != 0, repeated, x)
                x -= tl.load(presence + row) * (output > 0.0).to(tl.float32)
                x -= tl.load(frequency + row) * output
            tl.store(place, x, inside)
