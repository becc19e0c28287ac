"""Splits a weight by columns, in the form it is stored in: a rank's part of a matrix whose inputs are split.

Rows can be split anywhere in every form (`Weight.take`). Columns can be split anywhere in plain floats, INT8 and FP8,
and at even columns in INT4. If a split falls into a group of columns that share a scale, the part stores the group of
every column. Formats that store columns in blocks (GGUF, MXFP4, NVFP4) can be split only between blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from headrace.errors import UnsupportedModel
from headrace.kernels.weight import Weight
from headrace.quant.gguf_types import BLOCK_SIZES

__all__ = ["column_unit", "take_columns"]

Tensor = torch.Tensor
_GGUF = {f"gguf:{name}": (elements, size) for name, elements, size in BLOCK_SIZES.values()}
_PLAIN = frozenset({"float32", "bfloat16", "float16"})
_GROUPED = frozenset({"int4", "int8", "fp8_e4m3"})
_FP4 = {"mxfp4": 32, "nvfp4": 16}
_INPUT_GROUPS = {"fp8_group128": 128, "mxfp4": 32, "nvfp4": 16}
"""Columns whose inputs are quantized under one scale."""


def column_unit(weight: Weight) -> int:
    """The unit, in columns, at whose multiples the weight is best split: complete blocks, groups and input groups."""
    own = _required_unit(weight)
    if weight.scheme in _GROUPED and "group_index" not in weight.tensors:
        groups = weight.tensors["scales"].shape[1]
        own = math.lcm(own, weight.shape[1] // groups if groups > 1 else 1)
    return own


def take_columns(weight: Weight, start: int, stop: int) -> Weight:
    """Columns start to stop of a weight that is not a stack; the bias stays as it is.

    Raises UnsupportedModel if the format cannot be split there. The message gives the columns at which it can.
    """
    assert not weight.parts
    columns = weight.shape[1]
    if (start, stop) == (0, columns):
        return weight
    unit = _required_unit(weight)
    for at in (start, stop):
        if at % unit and at != columns:
            inputs = "" if weight.activation is None else f" for inputs in {weight.activation}"
            raise UnsupportedModel(
                f"{weight.name or 'a weight'} of {columns} columns is stored as {weight.scheme}{inputs}, which can be "
                f"split only at multiples of {unit} columns, but not at {at}: lower --tensor-parallel-size or choose "
                "the model in a format of smaller blocks"
            )
    tensors = _column_slicer(weight.scheme)(weight, start, stop)
    shared = {key: value for key, value in weight.tensors.items() if key not in tensors and key != "group_index"}
    return replace(weight, shape=(weight.shape[0], stop - start), tensors={**shared, **tensors}, prepared={})


def _required_unit(weight: Weight) -> int:
    """The unit, in columns, at whose multiples the weight can be split at all."""
    if weight.scheme in _GGUF:
        own = _GGUF[weight.scheme][0]
    elif weight.scheme in _FP4:
        own = _FP4[weight.scheme]
    else:
        own = 2 if weight.scheme == "int4" else 1
    return math.lcm(own, _INPUT_GROUPS.get(weight.activation or "", 1))


def _column_slicer(scheme: str) -> Callable[[Weight, int, int], dict[str, Tensor]]:
    if scheme in _PLAIN:
        return lambda weight, start, stop: {"weight": weight.tensors["weight"][:, start:stop]}
    if scheme in _GGUF:
        return _slice_blocks
    if scheme in _FP4:
        return _slice_fp4
    if scheme in _GROUPED:
        return _slice_grouped
    raise UnsupportedModel(f"columns of weights stored as {scheme} cannot be split: leave --tensor-parallel-size out")


def _slice_blocks(weight: Weight, start: int, stop: int) -> dict[str, Tensor]:
    elements, size = _GGUF[weight.scheme]
    blocks = weight.tensors["blocks"]
    return {"blocks": blocks[:, start // elements * size : stop // elements * size].contiguous()}


def _slice_fp4(weight: Weight, start: int, stop: int) -> dict[str, Tensor]:
    unit = _FP4[weight.scheme]
    codes, scales = weight.tensors["codes"], weight.tensors["scales"]
    return {
        "codes": codes[:, start // 2 : stop // 2].contiguous(),
        "scales": scales[:, start // unit : stop // unit].contiguous(),
    }


def _slice_grouped(weight: Weight, start: int, stop: int) -> dict[str, Tensor]:
    width = 2 if weight.scheme == "int4" else 1
    found = {"codes": weight.tensors["codes"][:, start // width : -(-stop // width)].contiguous()}
    groups = weight.tensors["scales"].shape[1]
    kept, index = _groups_of(weight, start, stop, groups)
    for name in ("scales", "zeros"):
        if name in weight.tensors:
            found[name] = weight.tensors[name][:, kept].contiguous()
    return found if index is None else {**found, "group_index": index}


def _groups_of(weight: Weight, start: int, stop: int, groups: int) -> tuple[Tensor, Tensor | None]:
    """(groups that the range overlaps, each column's index among them or None if these are equal runs)."""
    index = weight.tensors.get("group_index")
    size = weight.shape[1] // groups
    if index is None:
        if groups == 1 or (start % size == 0 and stop % size == 0):
            return torch.arange(start // size, -(-stop // size)), None
        index = torch.arange(weight.shape[1]) // size
    kept, places = torch.unique(index[start:stop].long(), return_inverse=True)
    return kept, places.int()
