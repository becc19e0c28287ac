"""Tables of cosines and sines for every kind of rotary embedding."""

from __future__ import annotations

import math

import torch

from headrace.models.config import Rope

__all__ = ["cos_sin_table", "frequencies"]

Tensor = torch.Tensor


def cos_sin_table(rope: Rope, positions: int, factors: Tensor | None = None) -> Tensor:
    """float32 [positions, rotary_dim]: cosines of all frequencies, then sines. Computed in float64.

    `factors` [rotary_dim / 2] divide the frequencies (a GGUF's `rope_freqs.weight`). They already contain the scaling,
    so it is not applied a second time.
    """
    if factors is not None:
        inverse = frequencies(Rope(rope.theta, rope.rotary_dim)) / factors.double()
    else:
        inverse = frequencies(rope)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), inverse)
    scale = rope.magnitude if rope.attention_factor is None else rope.attention_factor
    return (torch.cat([angles.cos(), angles.sin()], dim=1) * scale).float()


def frequencies(rope: Rope) -> Tensor:
    """The rotary frequencies in radians per position, float64 [rotary_dim / 2]."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float64) / rope.rotary_dim
    base = rope.theta**-exponents
    if rope.kind == "none":
        return torch.zeros_like(base)
    if rope.kind == "linear":
        return base / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, base)
    if rope.kind == "yarn":
        return _yarn(rope, base)
    return base


def _llama3(rope: Rope, base: Tensor) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, interpolate between (Llama 3.1 report, section 3.4)."""
    turns = rope.original_max_position * base / (2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = ((turns - rope.low_freq_factor) / span).clamp(0, 1)
    return base * (keep + (1 - keep) / rope.factor)


def _yarn(rope: Rope, base: Tensor) -> Tensor:
    """NTK by parts (arXiv:2309.00071, section 3.2)."""
    low, high = (_yarn_dimension(rope, beta) for beta in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001  # avoid a division by zero
    index = torch.arange(len(base), dtype=torch.float64)
    interpolate = ((index - low) / (high - low)).clamp(0, 1)
    return base * (1 - interpolate) + base / rope.factor * interpolate


def _yarn_dimension(rope: Rope, turns: float) -> float:
    """The dimension that makes this number of turns over the original context."""
    ratio = rope.original_max_position / (turns * 2 * math.pi)
    return rope.rotary_dim * math.log(ratio) / (2 * math.log(rope.theta))
