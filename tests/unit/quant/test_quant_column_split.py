"""Columns taken from every container stand for the same values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.errors import UnsupportedModel
from headrace.kernels.weight import Weight
from headrace.quant.column_split import column_unit, take_columns
from headrace.quant.containers import fp8_weight, int4_weight, int8_weight, int_weight, mxfp4_weight, nvfp4_weight
from headrace.quant.gguf import GGUF_TYPES, gguf_weight
from headrace.quant.weights import dense

ROWS, COLUMNS = 6, 512


def codes(high: int, columns: int = COLUMNS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(high)
    return torch.randint(0, high, (ROWS, columns), generator=generator, dtype=torch.uint8)


def table(groups: int) -> torch.Tensor:
    return torch.rand(ROWS, groups, generator=torch.Generator().manual_seed(groups)) + 0.5


ORDER = (torch.arange(COLUMNS) * 7 % 4).int()
WEIGHTS = {
    "bfloat16": (dense(torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).bfloat16()), 1, 1),
    "int4 by groups": (int4_weight(codes(256, COLUMNS // 2), COLUMNS, table(4), None, None, "w"), 128, 2),
    "int4 with zeros": (int_weight(codes(16), 4, table(4), codes(16, 4), None, "w"), 128, 2),
    "int4 in another order": (int_weight(codes(16), 4, table(4), codes(16, 4), ORDER, "w"), 2, 2),
    "int4 a row": (int4_weight(codes(256, COLUMNS // 2), COLUMNS, table(1), None, None, "w"), 2, 2),
    "int8 by groups": (int8_weight(codes(256).view(torch.int8), table(8), None, None, "w"), 64, 1),
    "fp8 by groups": (fp8_weight(codes(120).view(torch.float8_e4m3fn), table(4), None, "w"), 128, 1),
    "fp8 a row": (fp8_weight(codes(120).view(torch.float8_e4m3fn), table(1), None, "w"), 1, 1),
    "mxfp4": (mxfp4_weight(codes(256, COLUMNS // 2), codes(140, COLUMNS // 32), "w"), 32, 32),
    "nvfp4": (
        nvfp4_weight(
            codes(256, COLUMNS // 2), codes(120, COLUMNS // 16).view(torch.float8_e4m3fn), torch.tensor(3.0), "w"
        ),
        16,
        16,
    ),
}
"""(weight, unit of good splits in columns, unit of possible splits)"""


@pytest.mark.parametrize("name", WEIGHTS)
def test_split_columns_stand_for_the_same_values(name: str) -> None:
    weight, unit, least = WEIGHTS[name]
    assert column_unit(weight) == unit
    whole = weight.dequantize()
    for start, stop in ((0, unit), (0, COLUMNS), (128, 384), (least, 3 * least), (COLUMNS - 5 * least, COLUMNS)):
        part = take_columns(weight, start, stop)
        assert part.shape == (ROWS, stop - start)
        assert part.prepared == {}
        assert torch.equal(part.dequantize(), whole[:, start:stop]), (start, stop)


@pytest.mark.parametrize("kind", GGUF_TYPES.values(), ids=lambda kind: kind.name)
def test_gguf_weights_are_split_between_blocks(kind: object) -> None:
    rng = np.random.default_rng(0)
    blocks = torch.from_numpy(rng.integers(0, 60, (ROWS, 4 * kind.bytes), dtype=np.uint8))  # type: ignore[attr-defined]
    size = kind.elements  # type: ignore[attr-defined]
    weight = gguf_weight(kind, blocks, 4 * size, "blk.0.ffn_down")  # type: ignore[arg-type]
    assert column_unit(weight) == size
    cut = take_columns(weight, size, 3 * size).dequantize()
    assert torch.equal(cut.nan_to_num(), weight.dequantize()[:, size : 3 * size].nan_to_num())
    message = (
        rf"blk.0.ffn_down of {4 * size} columns is stored as gguf:\w+, "
        rf"which can be split only at multiples of {size} columns, but not at 8"
    )
    with pytest.raises(UnsupportedModel, match=message):
        take_columns(weight, 0, 8)


def test_groups_of_inputs_are_not_split() -> None:
    weight = replace(WEIGHTS["fp8 a row"][0], activation="fp8_group128")
    assert column_unit(weight) == 128
    assert take_columns(weight, 128, 256).activation == "fp8_group128"
    with pytest.raises(
        UnsupportedModel, match=r"for inputs in fp8_group128, which can be split only at multiples of 128 .* not at 64"
    ):
        take_columns(weight, 64, 256)


def test_shared_tensors_stay_in_a_part() -> None:
    weight = replace(WEIGHTS["nvfp4"][0], bias=torch.ones(ROWS))
    weight.tensors["input_global_scale"] = torch.ones(1)
    part = take_columns(weight, 0, 64)
    assert part.bias is weight.bias
    assert {"global_scale", "input_global_scale"} <= part.tensors.keys()


def test_an_unknown_form_is_refused_by_name() -> None:
    odd = Weight("ternary", (1, 8), {}, lambda weight: torch.zeros(1, 8))
    with pytest.raises(UnsupportedModel, match="stored as ternary cannot be split: leave --tensor-parallel-size out"):
        take_columns(odd, 0, 4)
