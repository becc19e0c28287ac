"""Inputs of a product in the format that a scheme asks for: codes and scales, so that the product can work on the
codes.

The arithmetic is that of `activation.py`, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.linear.activation import quantize_activation
from headrace.kernels.tritonlib.device import encode_e4m3, jit, next_power, to_int8
from headrace.kernels.tritonlib.launch_config import LaunchConfig
from headrace.kernels.weight import Weight

__all__ = ["Inputs", "prepare", "quantise_kernel"]

Tensor = torch.Tensor
_TINY = tl.constexpr(torch.finfo(torch.float32).eps)
_KINDS = {"int8_token": "int8", "int8_tensor": "int8", "int8_token_asymmetric": "asymmetric"}


@dataclass(frozen=True, slots=True)
class Inputs:
    """x = codes * scales."""

    codes: Tensor
    """[T, K]: int8, E4M3 bytes without -0 (uint8), or floats."""
    scales: Tensor | None
    """float32 [T, 1] or [T, ceil(K / group)]."""
    group: int
    """Columns per scale; 0: one scale per row."""


@jit
def quantise_kernel(
    x: tensor, codes: tensor, scales: tensor, static: tensor, width: int, groups: int, GROUP: tl.constexpr,
    KIND: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """A program a row and group of x [T, width]; GROUP 0: the whole row.

    `static` is the scale where the scheme fixes it.
    """
    # Grid (rows, groups). `x` and `codes` are [T, width], contiguous, `scales` [T, groups]; `static` is one scale or
    # None. A program holds its complete group (GROUP columns, or with GROUP 0 the row) in BLOCK lanes: it reads x once,
    # finds the largest value, and divides and rounds the same registers. Divisions are rounded to nearest (`div_rn`)
    # like torch's: the codes must equal the reference's. `asymmetric` writes code minus zero point as a float, since
    # the product does not support a zero point of inputs.
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = group * GROUP + tl.arange(0, BLOCK)
    inside = column < width
    if GROUP:
        inside = inside & (tl.arange(0, BLOCK) < GROUP)
    value = tl.load(x + row * width + column, inside, 0.0).to(tl.float32)
    one = tl.zeros([1], tl.float32)
    if static is not None:
        scale = one + tl.load(static)
    elif KIND == "asymmetric":
        low, high = tl.minimum(tl.min(value, 0), 0.0), tl.maximum(tl.max(value, 0), 0.0)
        scale = tl.div_rn(one + (high - low), one + 255.0)
    else:
        scale = tl.div_rn(one + tl.max(tl.abs(value), 0), one + (127.5 if KIND == "int8" else 448.0))
    scale = tl.where(scale == 0.0, _TINY, scale)
    tl.store(scales + row * groups + group + tl.arange(0, 1), scale)
    quotient = tl.div_rn(value, tl.zeros_like(value) + scale)
    place = codes + row * width + column
    if KIND == "int8":
        tl.store(place, to_int8(quotient, -128.0), inside)
    elif KIND == "fp8":
        code = encode_e4m3(quotient)
        tl.store(place, tl.where(code == 0x80, tl.zeros_like(code), code), inside)
    else:
        zero = to_int8(-128.0 - tl.div_rn(one + low, scale), -128.0).to(tl.float32)
        difference = to_int8(quotient + zero, -128.0).to(tl.float32) - zero
        tl.store(place, difference.to(codes.dtype.element_ty), inside)


def prepare(x: Tensor, weight: Weight | None, config: LaunchConfig) -> Inputs:
    """x [T, K], contiguous, as a product with this part sees it.

    Formats of four bits are rounded by torch, on the device.
    """
    if weight is None or weight.activation is None:
        return Inputs(x, None, 0)
    rule = weight.activation
    if rule in ("mxfp4", "nvfp4"):
        return Inputs(quantize_activation(x, weight).to(x.dtype), None, 0)
    kind, group = _KINDS.get(rule, "fp8"), 128 if rule == "fp8_group128" else 0
    rows, width = x.shape
    groups = -(-width // group) if group else 1
    codes = torch.empty_like(x, dtype={"int8": torch.int8, "fp8": torch.uint8}.get(kind, x.dtype))
    scales = x.new_empty(rows, groups, dtype=torch.float32)
    block = next_power(group or width, 16)
    args = {
        "x": x,
        "codes": codes,
        "scales": scales,
        "static": weight.tensors["input_scale"] if rule.endswith("_tensor") else None,
        "width": width,
        "groups": groups,
        "GROUP": group,
        "KIND": kind,
        "BLOCK": block,
    }
    config.launch(quantise_kernel, (rows, groups), args, min(max(block // 512, 1), 16), 1)
    return Inputs(codes, scales, group)
