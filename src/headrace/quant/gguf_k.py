"""GGUF super-blocks of 256 values, whose scales are quantized, too.

Every function of `__all__` maps uint8 [blocks, bytes] to float32 [blocks, 256].
"""

from __future__ import annotations

import torch

from headrace.kernels.codebooks import IQ4_VALUES
from headrace.quant.gguf_simple import half, nibbles

__all__ = ["iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]

Tensor = torch.Tensor


def _shifts(count: int, step: int, like: Tensor) -> Tensor:
    """uint8 [count]: 0, step, 2 step …"""
    return torch.arange(0, count * step, step, dtype=torch.uint8, device=like.device)


def _two_bits(packed: Tensor) -> Tensor:
    """uint8 [B, 64] → [B, 8, 32]: each half of 32 bytes holds four runs of 32 values, lowest bits first."""
    runs = packed.view(-1, 2, 1, 32) >> _shifts(4, 2, packed).view(1, 1, 4, 1)
    return (runs & 3).view(-1, 8, 32)


def _scaled(values: Tensor, scales: Tensor) -> Tensor:
    """Multiply values [B, 256] by one scale per run; scales [B, runs]."""
    count = scales.shape[1]
    return (values.reshape(-1, count, 256 // count) * scales.unsqueeze(-1)).reshape(-1, 256)


def q2_k(blocks: Tensor) -> Tensor:
    packed = blocks[:, :16]
    scales, mins = half(blocks, 80) * (packed & 15).float(), half(blocks, 82) * (packed >> 4).float()
    values = _two_bits(blocks[:, 16:80].contiguous()).float()
    return _scaled(values, scales) - mins.repeat_interleave(16, dim=1)


def q3_k(blocks: Tensor) -> Tensor:
    high = (blocks[:, :32].unsqueeze(1) >> _shifts(8, 1, blocks).view(1, 8, 1)) & 1
    values = (_two_bits(blocks[:, 32:96].contiguous()) | (high << 2)).float() - 4
    return _scaled(values, half(blocks, 108) * _q3_scales(blocks[:, 96:108]))


def _q3_scales(packed: Tensor) -> Tensor:
    """Sixteen 6-bit scales: their low four bits in bytes 0 to 7 (low halves first), the high two in bytes 8 to 11."""
    low = nibbles(packed[:, :8])
    high = (packed[:, 8:].unsqueeze(1) >> _shifts(4, 2, packed).view(1, 4, 1)) & 3
    return (low | (high.reshape(-1, 16) << 4)).float() - 32


def q4_k(blocks: Tensor) -> Tensor:
    scales, mins = _k_scales(blocks)
    return _scaled(_halves(blocks[:, 16:144]).float(), scales) - mins.repeat_interleave(32, dim=1)


def q5_k(blocks: Tensor) -> Tensor:
    scales, mins = _k_scales(blocks)
    high = (blocks[:, 16:48].unsqueeze(1) >> _shifts(8, 1, blocks).view(1, 8, 1)) & 1
    values = _halves(blocks[:, 48:176]) | (high << 4)
    return _scaled(values.float(), scales) - mins.repeat_interleave(32, dim=1)


def _halves(packed: Tensor) -> Tensor:
    """uint8 [B, 128] → [B, 8, 32]: 32 bytes hold one run in their low halves and the next run in their high halves."""
    return nibbles(packed.reshape(-1, 4, 32)).view(-1, 8, 32)


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Eight 6-bit scales and eight 6-bit minima, as float32 [B, 8] each, from bytes 4 to 15.

    Bytes 4 to 11 hold the first four of each, and in their top two bits the top bits of the last four.
    """
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([first & 63, (rest & 15) | ((first >> 6) << 4)], dim=1)
    mins = torch.cat([second & 63, (rest >> 4) | ((second >> 6) << 4)], dim=1)
    return half(blocks, 0) * scales.float(), half(blocks, 2) * mins.float()


def q6_k(blocks: Tensor) -> Tensor:
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    low = torch.cat([low & 15, low >> 4], dim=2).reshape(-1, 8, 32)
    values = (low | (_two_bits(blocks[:, 128:192].contiguous()) << 4)).float() - 32
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    return _scaled(values, half(blocks, 208) * scales)


def iq4_xs(blocks: Tensor) -> Tensor:
    table = torch.tensor(IQ4_VALUES, dtype=torch.float32, device=blocks.device)
    low = torch.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], dim=-1).reshape(-1, 8)
    high = (blocks[:, 2:4].unsqueeze(-1) >> _shifts(4, 2, blocks)) & 3
    scales = (low | (high.reshape(-1, 8) << 4)).float() - 32
    values = table[nibbles(blocks[:, 8:136].reshape(-1, 8, 16)).long()]
    return _scaled(values, half(blocks, 0) * scales)
