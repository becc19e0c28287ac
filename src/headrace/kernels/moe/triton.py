"""Triton form of `moe`: (token, expert) pairs sorted by expert, two grouped products, and a sum in order of choice."""

from __future__ import annotations

from typing import Any

import torch

from headrace.errors import PlatformError
from headrace.kernels.linear.activation import quantize_activation
from headrace.kernels.linear.triton import FLOATS
from headrace.kernels.linear.triton_inputs import prepare
from headrace.kernels.linear.triton_pack import OFFSET_ADDEND
from headrace.kernels.linear.triton_tile import Tile, coded_tile, dense_tile, math_of
from headrace.kernels.moe.reference import moe as by_reference
from headrace.kernels.moe.routing import Routing
from headrace.kernels.moe.triton_pack import Experts, experts
from headrace.kernels.moe.triton_product import expert_coded_kernel, expert_dense_kernel, mix_kernel
from headrace.kernels.moe.triton_route import Blocks, choose, sort
from headrace.kernels.tritonlib.launch_config import LaunchConfig
from headrace.kernels.weight import Weight

__all__ = ["moe", "pack"]

Tensor = torch.Tensor
_KINDS = ("silu", "gelu", "gelu_tanh")
_COLUMNS = 1024


def pack(weight: Weight, *, config: LaunchConfig) -> None:
    """Repack a weight at load, so that no step does it."""
    experts(weight, config)


def moe(
    x: Tensor,
    router: Tensor,
    gate_up: Weight,
    down: Weight,
    bias: Tensor | None,
    routing: Routing,
    kind: str,
    *,
    config: LaunchConfig,
) -> Tensor:
    """See `ops.OptionalOps.moe`. Raises PlatformError for a kind that is not one of three."""
    if kind not in _KINDS:
        raise PlatformError(f"moe: kind {kind!r}: choose one of {', '.join(_KINDS)}")
    first, second = experts(gate_up, config), experts(down, config)
    if first.by_reference or second.by_reference:
        return by_reference(x, router, gate_up, down, bias, routing, kind)
    x = x.contiguous()
    tokens, count, pairs = len(x), router.shape[1], len(x) * routing.top_k
    chosen, shares = choose(router, bias, routing, config)
    wide = x.dtype == torch.float32 or any(p.form.kind == "dense" and p.codes.dtype != x.dtype for p in (first, second))
    rows = dense_tile(-(-pairs // count), wide, config).rows  # for the mean number of pairs per expert
    blocks = sort(chosen, count, rows, config)
    hidden = x.new_empty(pairs, down.shape[1])
    _product(x, first, gate_up.bias, blocks, hidden, routing.top_k, kind, config)
    out = x.new_empty(pairs, x.shape[1], dtype=torch.float32)
    _product(hidden, second, down.bias, blocks, out, 1, "", config)
    y = torch.empty_like(x)
    args = {"out": out, "shares": shares, "y": y, "width": x.shape[1], "K": routing.top_k, "BLOCK": _COLUMNS}
    config.launch(mix_kernel, (tokens, -(-x.shape[1] // _COLUMNS)), args, 4, 1)
    return y


def _product(
    x: Tensor,
    part: Experts,
    bias: Tensor | None,
    blocks: Blocks,
    out: Tensor,
    divide: int,
    gate: str,
    config: LaunchConfig,
) -> None:
    """Compute pair p's row of `out` from row p // divide of x.

    `gate` is the activation of gate and up; it is empty for a single matrix.
    """
    columns, depth = part.form.shape
    shared: dict[str, Any] = {
        "bias": bias,
        "order": blocks.order,
        "owner": blocks.owner,
        "out": out,
        "columns": columns,
        "depth": depth,
        "divide": divide,
        "GATE": gate,
    }
    if part.form.kind == "dense":
        _dense(x, part, shared, config)
    else:
        _coded(x, part, shared, config)


def _launch(kernel: Any, args: dict[str, Any], tile: Tile, config: LaunchConfig) -> None:
    # Gate and up need twice the registers.
    blocks, rows = args["order"].shape
    width = min(tile.columns, 32 if args["GATE"] else 64)
    args |= {"BM": rows, "BN": width, "BK": tile.depth}
    config.launch(kernel, (blocks, -(-args["columns"] // width)), args, tile.warps, config.stages)


def _dense(x: Tensor, part: Experts, shared: dict[str, Any], config: LaunchConfig) -> None:
    if part.form.source is not None:
        x = quantize_activation(x, part.form.source).to(x.dtype)
    wide = x.dtype == torch.float32 or x.dtype != part.codes.dtype
    tile = dense_tile(shared["order"].shape[1], wide, config)
    even = shared["depth"] % tile.depth == 0
    _launch(expert_dense_kernel, {**shared, "x": x, "weight": part.codes, "WIDE": wide, "EVEN": even}, tile, config)


def _coded(x: Tensor, part: Experts, shared: dict[str, Any], config: LaunchConfig) -> None:
    form = part.form
    assert form.scales is not None
    inputs = prepare(x, form.source, config)
    math, groups = math_of(inputs, form, config), form.scales.shape[0]
    tile = coded_tile(shared["order"].shape[1], form, math, x.dtype, config)
    args = {
        **shared,
        "x": inputs.codes,
        "codes": part.codes,
        "scales": part.scales,
        "offsets": part.offsets,
        "x_scales": inputs.scales,
        "columns_order": part.order,
        "size": part.size,
        "groups": groups,
        "x_groups": 1 if inputs.scales is None else inputs.scales.shape[1],
        "rows": len(x),
        "KIND": form.kind,
        "FOUR": form.kind in ("int4", "fp4"),
        "GROUP": form.group,
        "X_GROUP": inputs.group,
        "OFFSET": form.offset,
        "LATE": groups == 1 and form.offset != OFFSET_ADDEND,
        "MATH": math,
        "FLOAT": FLOATS[x.dtype],
    }
    _launch(expert_coded_kernel, args, tile, config)
