"""Codes packed into words: bit streams of any width, and two codes per byte."""

from __future__ import annotations

import torch

__all__ = ["pack_nibbles", "split_nibbles", "unpack_stream"]

Tensor = torch.Tensor


def unpack_stream(words: Tensor, bits: int, count: int) -> Tensor:
    """Codes of 1 to 8 bits, uint8 [rows, count], from int32 [rows, words].

    Code i starts at bit i * bits of the row's little-endian stream.
    """
    stream = words.contiguous().view(torch.uint8)
    if 8 % bits == 0:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=words.device)
        codes = (stream.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
        return codes.flatten(1)[:, :count]
    start = torch.arange(count, device=words.device) * bits
    padded = torch.nn.functional.pad(stream, (0, 1)).to(torch.int16)
    pairs = padded[:, start // 8] | (padded[:, start // 8 + 1] << 8)
    codes = (pairs >> (start % 8).to(torch.int16)) & ((1 << bits) - 1)
    return codes.to(torch.uint8)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Pack codes below 16, [N, K], into uint8 [N, ceil(K / 2)]: even columns in low halves, odd ones in high halves."""
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def split_nibbles(packed: Tensor, columns: int) -> Tensor:
    """The inverse of `pack_nibbles`: uint8 [N, columns]."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)[:, :columns]
