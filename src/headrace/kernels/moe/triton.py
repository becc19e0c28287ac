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

__all__ = ["COLUMNS", "check_kind", "grouped", "moe", "pack", "products"]

Tensor = torch.Tensor
_KINDS = ("silu", "gelu", "gelu_tanh")
COLUMNS = 1024
"""Columns of a sum per program."""


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
    check_kind(kind)
    if grouped(gate_up, down, config) is None:
        return by_reference(x, router, gate_up, down, bias, routing, kind)
    chosen, shares = choose(router, bias, routing, config)
    out = x.new_empty(len(x) * routing.top_k, x.shape[1], dtype=torch.float32)
    products(x, chosen, gate_up, down, kind, router.shape[1], out, config)
    y = x.new_empty(x.shape)
    args = {"out": out, "shares": shares, "y": y, "width": x.shape[1], "K": routing.top_k, "BLOCK": COLUMNS}
    config.launch(mix_kernel, (len(x), -(-x.shape[1] // COLUMNS)), args, 4, 1)
    return y


def check_kind(kind: str) -> None:
    if kind not in _KINDS:
        raise PlatformError(f"moe: kind {kind!r}: choose one of {', '.join(_KINDS)}")


def grouped(gate_up: Weight, down: Weight, config: LaunchConfig) -> tuple[Experts, Experts] | None:
    """The packed experts; None if grouped products are not possible."""
    first, second = experts(gate_up, config), experts(down, config)
    return None if first.by_reference or second.by_reference else (first, second)


def products(
    x: Tensor, chosen: Tensor, gate_up: Weight, down: Weight, kind: str, experts: int, out: Tensor, config: LaunchConfig
) -> None:
    """Write what the chosen experts [T, k] give to out [T k, D]. Numbers that are not in the stacks are left out.

    `experts`: of all ranks; the size of a block of rows follows from the mean number of pairs for each.
    """
    found = grouped(gate_up, down, config)
    assert found is not None
    first, second = found
    x = x.contiguous()
    pairs, top_k = chosen.numel(), chosen.shape[1]
    wide = x.dtype == torch.float32 or any(p.form.kind == "dense" and p.codes.dtype != x.dtype for p in (first, second))
    rows = dense_tile(-(-pairs // experts), wide, config).rows
    blocks = sort(chosen, len(second.codes), rows, config)
    hidden = x.new_empty(pairs, down.shape[1])
    _product(x, first, gate_up.bias, blocks, hidden, top_k, kind, config)
    _product(hidden, second, down.bias, blocks, out, 1, "", config)


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
