"""Functions that several kernels call on the device. Requires triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from triton.language import tensor

__all__ = ["as_float", "decode_e4m3", "encode_e4m3", "jit", "jit_varying", "next_power", "tanh", "to_int8"]


def jit(function: Callable[..., Any]) -> Any:
    """`triton.jit` with a type: a kernel, or a function that kernels call."""
    return triton.jit(function)


def jit_varying(*names: str) -> Callable[[Callable[..., Any]], Any]:
    """`jit` for a kernel whose integer arguments `names` depend on the batch.

    Without it, triton compiles the kernel again, while serving, if one of them is 1 or a multiple of 16.
    """
    made: Callable[[Callable[..., Any]], Any] = triton.jit(do_not_specialize=names)
    return made


def next_power(n: int, least: int = 1) -> int:
    """The smallest power of two that is at least n and `least`."""
    return max(least, 1 << max(n - 1, 0).bit_length())


@jit
def as_float(codes: tensor, dtype: tl.constexpr) -> tensor:
    """E4M3 codes (uint8, OCP) or plain numbers as `dtype`; exact if it has at least 8 bits of significand."""
    if codes.dtype == tl.uint8:
        return decode_e4m3(codes).to(dtype)
    return codes.to(dtype)


@jit
def decode_e4m3(codes: tensor) -> tensor:
    """OCP E4M3 codes (uint8) as float16: shifts the bits and corrects the exponent's bias. Exact, on every chip.

    NaN (0x7F, 0xFF) is read as 480; it is never written here.
    """
    wide = codes.to(tl.uint16)
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return bits.to(tl.float16, bitcast=True) * 256.0


@jit
def encode_e4m3(x: tensor) -> tensor:
    """float32 as OCP E4M3 codes (uint8): to nearest, ties to even, saturating at 448.

    Negative values that round to zero give -0.
    """
    size = tl.minimum(tl.abs(x), 448.0)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below the smallest normal number, codes are multiples of 2^-9; adding 1.5 * 2^23 rounds to an integer.
    small = ((size * 512.0 + 12582912.0) - 12582912.0).to(tl.int32)
    code = tl.where(size < 0.015625, small, normal)
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (code | sign).to(tl.uint8)


@jit
def to_int8(x: tensor, low: tl.constexpr) -> tensor:
    """float32 as int8, clamped to the range low to 127 and rounded to nearest, ties to even."""
    x = tl.minimum(tl.maximum(x, low), 127.0)
    return ((x + 12582912.0) - 12582912.0).to(tl.int8)


@jit
def tanh(x: tensor) -> tensor:
    """tanh in float32; the absolute error is about one unit in the last place of 1."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
