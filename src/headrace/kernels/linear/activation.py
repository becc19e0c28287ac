"""The schemes' rounding of the inputs of a product: every function rounds to the format and back, in float32.

Scales follow compressed-tensors: a symmetric scale is the largest magnitude divided by half the format's range (127.5
for int8, 448 for E4M3, 6 for E2M1). Every scale depends on one row only, so that a row's result does not depend on the
other rows of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from headrace.kernels.weight import Weight

__all__ = ["ACTIVATIONS", "quantize_activation", "round_e2m1", "round_e4m3"]

Tensor = torch.Tensor
_TINY = torch.finfo(torch.float32).eps
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def quantize_activation(x: Tensor, weight: Weight) -> Tensor:
    """x [T, K] rounded as the weight's scheme requires, in float32; x itself if the scheme does not round inputs.

    Not for stacks: each part has its own rule. Static scales are the weight's tensors `input_scale` and
    `input_global_scale`.
    """
    assert not weight.parts
    if weight.activation is None:
        return x
    return ACTIVATIONS[weight.activation](x.float(), weight)


def round_e4m3(x: Tensor) -> Tensor:
    """Round to the nearest OCP E4M3 value, ties to even, saturating at 448."""
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def round_e2m1(x: Tensor) -> Tensor:
    """Round to the nearest E2M1 value, ties to even, saturating at 6 (OCP Microscaling 1.0)."""
    table = torch.tensor(_E2M1, device=x.device)
    size = x.abs()
    upper = torch.bucketize(size, table).clamp(1, len(_E2M1) - 1)
    middle = (table[upper - 1] + table[upper]) / 2
    up = (size > middle) | ((size == middle) & (upper % 2 == 0))
    return torch.where(up, table[upper], table[upper - 1]).copysign(x)


def _scale(size: Tensor, half_range: float) -> Tensor:
    """The scale for a largest magnitude; never zero."""
    scale = size / half_range
    return torch.where(scale == 0, _TINY, scale)


def _groups(x: Tensor, group: int) -> Tensor:
    return x.reshape(*x.shape[:-1], x.shape[-1] // group, group)


def _int8(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).clamp(-128, 127).round() * scale


def _int8_token(x: Tensor, weight: Weight) -> Tensor:
    return _int8(x, _scale(x.abs().amax(-1, keepdim=True), 127.5))


def _int8_token_asymmetric(x: Tensor, weight: Weight) -> Tensor:
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = _scale(high - low, 255.0)
    zero = (-128 - low / scale).clamp(-128, 127).round()
    return ((x / scale + zero).clamp(-128, 127).round() - zero) * scale


def _int8_tensor(x: Tensor, weight: Weight) -> Tensor:
    return _int8(x, weight.tensors["input_scale"])


def _fp8_token(x: Tensor, weight: Weight) -> Tensor:
    scale = _scale(x.abs().amax(-1, keepdim=True), 448.0)
    return round_e4m3(x / scale) * scale


def _fp8_tensor(x: Tensor, weight: Weight) -> Tensor:
    scale = weight.tensors["input_scale"]
    return round_e4m3(x / scale) * scale


def _fp8_group128(x: Tensor, weight: Weight) -> Tensor:
    """One scale per 128 inputs of a row; the last group may be shorter."""
    pieces = [_fp8_token(piece, weight) for piece in torch.split(x, 128, dim=-1)]
    return torch.cat(pieces, dim=-1)


def _power_of_two(size: Tensor, mantissa: int, largest_exponent: int) -> Tensor:
    """The E8M0 scale that compressed-tensors chooses: the exponent of the rounded magnitude minus the format's largest
    exponent."""
    bits = size.view(torch.int32) + (1 << (23 - mantissa - 1))
    exponent = (bits >> 23) - 127 - largest_exponent
    return torch.ldexp(torch.ones_like(size), exponent.clamp(-127, 127))


def _mxfp4(x: Tensor, weight: Weight) -> Tensor:
    grouped = _groups(x, 32)
    scale = _power_of_two(grouped.abs().amax(-1, keepdim=True), 1, 2)
    return (round_e2m1(grouped / scale) * scale).flatten(-2)


def _nvfp4(x: Tensor, weight: Weight) -> Tensor:
    """One E4M3 scale per group of 16, and the checkpoint's scale for the complete tensor."""
    whole = weight.tensors["input_global_scale"]
    grouped = _groups(x, 16)
    local = round_e4m3(whole * (grouped.abs().amax(-1, keepdim=True) / 6.0))
    scale = torch.where(local == 0, 0.125, local) / whole
    return (round_e2m1(grouped / scale) * scale).flatten(-2)


ACTIVATIONS: Mapping[str, Callable[[Tensor, Weight], Tensor]] = MappingProxyType(
    {
        "fp8_group128": _fp8_group128,
        "fp8_tensor": _fp8_tensor,
        "fp8_token": _fp8_token,
        "int8_tensor": _int8_tensor,
        "int8_token": _int8_token,
        "int8_token_asymmetric": _int8_token_asymmetric,
        "mxfp4": _mxfp4,
        "nvfp4": _nvfp4,
    }
)
"""The rounding functions by the values of `Weight.activation`."""
