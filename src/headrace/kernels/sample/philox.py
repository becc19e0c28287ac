"""Philox4x32-10 (Salmon et al., SC'11) and the Gumbel noise that sampling adds."""

from __future__ import annotations

import torch

from headrace.kernels.row_arithmetic import elementwise

__all__ = ["gumbel", "philox"]

Tensor = torch.Tensor
_MASK = 0xFFFFFFFF


def philox(counter: list[Tensor], key: list[Tensor]) -> list[Tensor]:
    """Four random words of 32 bits from four counter and two key words; all int64 tensors that hold unsigned 32-bit
    values."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The product may wrap around in int64; its 64 bits are right all the same.
        even, odd = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((odd >> 32) & _MASK) ^ c1 ^ k0, odd & _MASK, ((even >> 32) & _MASK) ^ c3 ^ k1, even & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return [c0, c1, c2, c3]


def gumbel(seed: Tensor, position: Tensor, vocab: int) -> Tensor:
    """float32 [R, V]: the noise of token t at `position` [R] under `seed` [R] (int64, the bits of an unsigned one).

    Word t mod 4 of philox(counter = (t div 4, position, 0, 0), key = (low, high half of the seed)) is w. Then, in
    float32: u = min((float(w) + 0.5) * 2^-32, 1 - 2^-24), e = -log1p(-u), noise = -log(e). It lies between -2.82 and
    22.88.
    """
    quads = torch.arange(-(-vocab // 4), device=seed.device).unsqueeze(0)
    zero = torch.zeros_like(quads)
    seed, position = seed.long().unsqueeze(1), position.long().unsqueeze(1) & _MASK
    words = philox([quads, position, zero, zero], [seed & _MASK, (seed >> 32) & _MASK])
    word = torch.stack(words, -1).flatten(1)[:, :vocab]
    u = ((word.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    return -elementwise(torch.log, -elementwise(torch.log1p, -u))
