"""GGUF blocks of 32 values with one scale. Every function maps uint8 [blocks, bytes] to float32 [blocks, 32]."""

from __future__ import annotations

import torch

from headrace.kernels.codebooks import FP4_VALUES, IQ4_VALUES

__all__ = ["half", "iq4_nl", "mxfp4", "nibbles", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]

Tensor = torch.Tensor


def half(blocks: Tensor, offset: int) -> Tensor:
    """The float16 at a byte offset of each block, as float32 [blocks, 1]."""
    return blocks[:, offset : offset + 2].contiguous().view(torch.float16).float()


def nibbles(packed: Tensor) -> Tensor:
    """Split bytes, uint8 [..., n] → uint8 [..., 2 n]: all low halves, then all high halves."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def q4_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * (nibbles(blocks[:, 2:]).float() - 8)


def q4_1(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * nibbles(blocks[:, 4:]).float() + half(blocks, 2)


def q5_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * (_five_bits(blocks[:, 6:], blocks[:, 2:6]).float() - 16)


def q5_1(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * _five_bits(blocks[:, 8:], blocks[:, 4:8]).float() + half(blocks, 2)


def _five_bits(low: Tensor, high: Tensor) -> Tensor:
    """Join the halves with the fifth bits: value j has its fifth bit at bit j of the 32 bits in `high`."""
    bits = (high.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=high.device)) & 1
    return nibbles(low) | (bits.flatten(1) << 4)


def q8_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * blocks[:, 2:].contiguous().view(torch.int8).float()


def iq4_nl(blocks: Tensor) -> Tensor:
    table = torch.tensor(IQ4_VALUES, dtype=torch.float32, device=blocks.device)
    return half(blocks, 0) * table[nibbles(blocks[:, 2:]).long()]


def mxfp4(blocks: Tensor) -> Tensor:
    """E2M1 values under a power-of-two scale (OCP Microscaling 1.0, E8M0: 2^(byte - 127))."""
    table = torch.tensor(FP4_VALUES, dtype=torch.float32, device=blocks.device)
    return torch.ldexp(table[nibbles(blocks[:, 1:]).long()], blocks[:, :1].int() - 127)
