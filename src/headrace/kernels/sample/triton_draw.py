"""Truncation and sampling of one row by one program, without sorting: thresholds are found by bisecting the scores.
bits.

Masses are fixed-point integers of 2^-44, so their sums don't depend on the order: a row gets the same token in every
batch and on every device. The largest weight is 1, so the rounding of 2^18 tokens together stays below that of one
float32 `exp`. Requires triton.
"""

from __future__ import annotations

import triton.language as tl
from triton.language import tensor

from headrace.kernels.tritonlib.device import jit

__all__ = ["best_of", "draw", "last"]

_ONE = tl.constexpr(17592186044416.0)  # 2^44
_BIG = tl.constexpr(2147483647)


@jit
def _key(x: tensor) -> tensor:
    """An int32 with the order of the float; -0 counts as +0."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def _mass(x: tensor, inside: tensor, min_p: tensor) -> tensor:
    """The weight exp(x) as int64; 0 for tokens that min_p removes."""
    weight = tl.exp(x)
    return tl.where(inside & (weight >= min_p), (weight * _ONE).to(tl.int64), 0)


@jit
def _within(key: tensor, token: tensor, cut: tensor, last_tie: tensor) -> tensor:
    """Whether a token is above the threshold `cut`, or a tie with an id up to `last_tie`."""
    return (key > cut) | ((key == cut) & (token <= last_tie))


@jit
def last(best: tensor, token: tensor) -> tensor:
    """(largest, its token) over all lanes, ties by the lower id; _BIG if every lane is empty."""
    top = tl.max(best, 0)
    return top, tl.min(tl.where(best == top, token, _BIG), 0)


@jit
def best_of(row: tensor, vocab: tensor, BLOCK: tl.constexpr) -> tensor:
    """(largest, its token) of float32 [vocab]; all -inf: (-inf, _BIG)."""
    best, token = tl.full([BLOCK], float("-inf"), tl.float32), tl.zeros([BLOCK], tl.int32) + _BIG
    for start in range(0, vocab, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, at < vocab, float("-inf"))
        better = x > best
        best, token = tl.where(better, x, best), tl.where(better, at, token)
    return last(best, token)


@jit
def _search(
    row: tensor, vocab: tensor, goal: tensor, cut: tensor, last_tie: tensor, min_p: tensor, MASS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tensor:  # fmt: skip
    """(key t, sum above t): t is the largest with a sum over keys >= t of at least `goal`.

    The sum counts tokens, or with MASS adds the weights of those within (cut, last_tie) and min_p. Two bits of the key
    a pass.
    """
    prefix = goal * 0
    for digit in range(16):
        size = (goal * 0 + 1) << (30 - 2 * digit)
        first = (prefix + size - 2147483648).to(tl.int32)
        second = (prefix + 2 * size - 2147483648).to(tl.int32)
        third = (prefix + 3 * size - 2147483648).to(tl.int32)
        one, two, three = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
        for start in range(0, vocab, BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(row + at, at < vocab, float("-inf"))
            key = _key(x)
            weight = (
                _mass(x, (at < vocab) & _within(key, at, cut, last_tie), min_p) if MASS else (at < vocab).to(tl.int64)
            )
            one += tl.where(key >= first, weight, 0)
            two += tl.where(key >= second, weight, 0)
            three += tl.where(key >= third, weight, 0)
        enough = (tl.sum(one, 0) >= goal).to(tl.int64) + (tl.sum(two, 0) >= goal).to(tl.int64)
        prefix += size * (enough + (tl.sum(three, 0) >= goal).to(tl.int64))
    return (prefix - 2147483648).to(tl.int32)


@jit
def _above(
    row: tensor, vocab: tensor, t: tensor, cut: tensor, last_tie: tensor, min_p: tensor, MASS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tensor:  # fmt: skip
    """(sum over keys above t, weight of one token at t, sum over all), int64."""
    above, own, total = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocab, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, at < vocab, float("-inf"))
        key = _key(x)
        weight = _mass(x, (at < vocab) & _within(key, at, cut, last_tie), min_p) if MASS else (at < vocab).to(tl.int64)
        above += tl.where(key > t, weight, 0)
        own = tl.maximum(own, tl.where(key == t, weight, 0))
        total += weight
    return tl.sum(above, 0), tl.max(own, 0), tl.sum(total, 0)


@jit
def _tie(row: tensor, vocab: tensor, t: tensor, count: tensor, BLOCK: tl.constexpr) -> tensor:
    """The token that is number `count` (from 1) of those whose key is t; _BIG where there are fewer."""
    found, before = tl.zeros([BLOCK], tl.int32) + _BIG, count * 0
    for start in range(0, vocab, BLOCK):
        at = start + tl.arange(0, BLOCK)
        equal = (_key(tl.load(row + at, at < vocab, float("-inf"))) == t) & (at < vocab)
        number = before + tl.cumsum(equal.to(tl.int32), 0)
        found = tl.minimum(found, tl.where(equal & (number == count), at, _BIG))
        before += tl.sum(equal.to(tl.int32), 0).to(tl.int64)
    return tl.min(found, 0)


@jit
def _gumbel(seed: tensor, position: tensor, start: tensor, BLOCK: tl.constexpr) -> tensor:
    """float32 [BLOCK]: the noise of tokens start … start + BLOCK - 1, four to a Philox4x32-10 counter; see
    `philox.gumbel`."""
    quad = (start // 4 + tl.arange(0, BLOCK // 4)).to(tl.uint32)
    zero = quad * 0
    low, high = (seed & 0xFFFFFFFF).to(tl.uint32), ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox_impl(quad, zero + position.to(tl.uint32), zero, zero, low, high)
    word = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    u = tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.999999940395355224609375)
    rest = 1.0 - u
    # log1p(-u), right to the last bits though log(1 - u) is not: the error of 1 - u is put back as a factor.
    e = tl.where(rest == 1.0, u, -tl.log(rest) * (u / tl.where(rest == 1.0, 1.0, 1.0 - rest)))
    return -tl.log(e)


@jit
def draw(
    row: tensor, vocab: tensor, peak: tensor, first: tensor, temperature: tensor, top_k: tensor, min_p: tensor,
    top_p: tensor, seed: tensor, position: tensor, BLOCK: tl.constexpr,
) -> tensor:  # fmt: skip
    """One token of float32 [vocab], which becomes (logit - peak) / temperature; `first` is the token of the peak."""
    for start in range(0, vocab, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, at < vocab, float("-inf")) - peak
        tl.store(row + at, tl.div_rn(x, tl.zeros_like(x) + temperature), at < vocab)
    tl.debug_barrier()
    cut, last_tie = first * 0 - 2147483647, first * 0 + _BIG
    if (top_k > 0) & (top_k < vocab):
        goal = top_k.to(tl.int64)
        cut = _search(row, vocab, goal, cut, last_tie, min_p, False, BLOCK)
        above, _, _ = _above(row, vocab, cut, cut, last_tie, min_p, False, BLOCK)
        last_tie = _tie(row, vocab, cut, goal - above, BLOCK)
    if top_p < 1.0:
        _, _, total = _above(row, vocab, cut, cut, last_tie, min_p, True, BLOCK)
        part = total.to(tl.float64) * top_p.to(tl.float64)
        goal = part.to(tl.int64)
        goal = tl.maximum(goal + (goal.to(tl.float64) < part).to(tl.int64), 1)
        t = _search(row, vocab, goal, cut, last_tie, min_p, True, BLOCK)
        above, own, _ = _above(row, vocab, t, cut, last_tie, min_p, True, BLOCK)
        own = tl.maximum(own, 1)
        tie = _tie(row, vocab, t, (goal - above + own - 1) // own, BLOCK)
        last_tie = tl.where(t == cut, tl.minimum(last_tie, tie), tie)
        cut = t
    best, token = tl.full([BLOCK], float("-inf"), tl.float32), tl.zeros([BLOCK], tl.int32) + _BIG
    for start in range(0, vocab, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, at < vocab, float("-inf"))
        kept = (at == first) | (_within(_key(x), at, cut, last_tie) & (tl.exp(x) >= min_p))
        score = tl.where(kept & (at < vocab), x + _gumbel(seed, position, start, BLOCK), float("-inf"))
        better = score > best
        best, token = tl.where(better, score, best), tl.where(better, at, token)
    _, token_drawn = last(best, token)
    return token_drawn
