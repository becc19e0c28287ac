"""Triton form of `linear`, which `logits` shares."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
import triton.language as tl

from headrace.kernels.linear.activation import quantize_activation
from headrace.kernels.linear.triton_inputs import Inputs, prepare
from headrace.kernels.linear.triton_pack import OFFSET_ADDEND, TritonPacked, packed
from headrace.kernels.linear.triton_product import coded_kernel, dense_kernel
from headrace.kernels.linear.triton_tile import Tile, coded_tile, dense_tile, math_of
from headrace.kernels.tritonlib.launch_config import LaunchConfig
from headrace.kernels.weight import Weight

__all__ = ["FLOATS", "linear", "pack", "product"]

Tensor = torch.Tensor
FLOATS = MappingProxyType({torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16})
"""Triton's types by torch's types."""


def linear(x: Tensor, weight: Weight, *, config: LaunchConfig) -> Tensor:
    """See `ops.Ops.linear`."""
    return product(x, weight, None, None, x.dtype, config)


def pack(weight: Weight, *, config: LaunchConfig) -> None:
    """Repack a weight at load, so that no step does it."""
    packed(weight, config)


def product(
    x: Tensor, weight: Weight, picks: Tensor | None, soft_cap: float | None, dtype: torch.dtype, config: LaunchConfig
) -> Tensor:
    """[M, N] in `dtype`: rows `picks` of x (all where None) times the weight, its bias, and c tanh(y / c) where there
    is a cap."""
    parts = packed(weight, config)
    x = x.contiguous()
    if picks is not None and any(part.source for part in parts):
        x, picks = x[picks.long()], None
    rows = len(x) if picks is None else len(picks)
    out, first = x.new_empty(rows, weight.shape[0], dtype=dtype), 0
    for part in parts:
        last = first + part.shape[0]
        bias = None if weight.bias is None else weight.bias[first:last]
        shared = {
            "bias": bias,
            "picks": picks,
            "out": out[:, first:last],
            "rows": rows,
            "columns": part.shape[0],
            "depth": part.shape[1],
            "out_stride": weight.shape[0],
            "soft_cap": soft_cap or 1.0,
            "CAP": soft_cap is not None,
        }
        if part.kind == "dense":
            _dense(_rounded(x, part), part, shared, config)
        else:
            _coded(prepare(x, part.source, config), part, shared, x.dtype, config)
        first = last
    return out


def _rounded(x: Tensor, part: TritonPacked) -> Tensor:
    """The inputs of a float matrix; torch rounds them if the scheme requires it, which is rare."""
    return x if part.source is None else quantize_activation(x, part.source).to(x.dtype)


def _launch(kernel: Any, args: dict[str, Any], tile: Tile, config: LaunchConfig) -> None:
    grid = (-(-args["rows"] // tile.rows), -(-args["columns"] // tile.columns))
    args |= {"BM": tile.rows, "BN": tile.columns, "BK": tile.depth, "EVEN": args["depth"] % (2 * tile.depth) == 0}
    config.launch(kernel, grid, args, tile.warps, config.stages)


def _dense(x: Tensor, part: TritonPacked, shared: dict[str, Any], config: LaunchConfig) -> None:
    wide = x.dtype == torch.float32 or x.dtype != part.codes.dtype
    tile = dense_tile(shared["rows"], wide, config)
    _launch(dense_kernel, {**shared, "x": x, "weight": part.codes, "WIDE": wide}, tile, config)


def _coded(
    inputs: Inputs, part: TritonPacked, shared: dict[str, Any], dtype: torch.dtype, config: LaunchConfig
) -> None:
    assert part.scales is not None
    math = math_of(inputs, part, config)
    tile = coded_tile(shared["rows"], part, math, dtype, config)
    args = {
        **shared,
        "x": inputs.codes,
        "codes": part.codes,
        "scales": part.scales,
        "offsets": part.offsets,
        "x_scales": inputs.scales,
        "order": part.order,
        "x_groups": 1 if inputs.scales is None else inputs.scales.shape[1],
        "KIND": part.kind,
        "GROUP": part.group,
        "X_GROUP": inputs.group,
        "OFFSET": part.offset,
        "LATE": part.scales.shape[0] == 1 and part.offset != OFFSET_ADDEND,
        "FOUR": part.kind in ("int4", "fp4"),
        "MATH": math,
        "FLOAT": FLOATS[dtype],
    }
    _launch(coded_kernel, args, tile, config)
