"""The arithmetic and the tile of one step of a product, for `linear` and for experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace.kernels.linear.triton_inputs import Inputs
from headrace.kernels.linear.triton_pack import NO_OFFSET, TritonPacked
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["Tile", "coded_tile", "dense_tile", "math_of"]

_LEAST = 32
"""Depth of a matrix instruction on 8-bit codes."""
_DEPTH = 64
"""Depth of a step of plain floats."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, columns and depth of one step of a program."""

    rows: int
    columns: int
    depth: int
    warps: int = 4


def dense_tile(rows: int, wide: bool, config: LaunchConfig) -> Tile:
    """The tile for `rows` inputs times a float matrix; `wide`: multiplied in float32."""
    return _tile(rows, _DEPTH, wide, config)


def coded_tile(rows: int, part: TritonPacked, math: str, dtype: torch.dtype, config: LaunchConfig) -> Tile:
    """For `rows` inputs of `dtype` times codes, by the arithmetic of `math_of`; a step stays within one group of
    columns."""
    assert part.scales is not None
    if math != "float":
        whole = part.group % 128 == 0 or part.scales.shape[0] == 1
        return _tile(rows, 128 if whole else part.unit, False, config)
    tile = _tile(rows, part.unit, dtype == torch.float32, config)
    # Dequantizing takes registers, so these tiles are narrower and have more warps.
    return Tile(tile.rows, min(tile.columns, 64), tile.depth if part.kind in ("int8", "fp8") else part.unit, 8)


def math_of(inputs: Inputs, part: TritonPacked, config: LaunchConfig) -> str:
    """What is multiplied: codes where the matrix unit takes both sides' type, else floats as wide as the
    activations."""
    if part.offset == NO_OFFSET and inputs.codes.dtype == torch.int8 and part.kind == "int8":
        return "int8" if part.unit >= _LEAST else "float"
    if config.fp8 and inputs.codes.dtype == torch.uint8 and part.kind == "fp8":
        return config.fp8 if part.unit >= _LEAST else "float"
    return "float"


def _tile(rows: int, depth: int, wide: bool, config: LaunchConfig) -> Tile:
    """The tile; it is the same for all `rows` if results must not depend on the batch. float32 needs more registers."""
    if wide:
        return Tile(32, 32, min(depth, 32))
    if config.batch_invariant:
        return Tile(64, 64, depth)
    return Tile(16, 32, depth) if rows <= 16 else Tile(64, 128, depth, 8)
