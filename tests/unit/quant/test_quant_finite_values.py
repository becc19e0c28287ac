"""Values that are not finite are found in every format and position; finite weights pass."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from headrace.errors import CheckpointError
from headrace.kernels.weight import Weight
from headrace.quant.containers import fp8_weight, int4_weight, int8_weight, mxfp4_weight, nvfp4_weight
from headrace.quant.finite_values import check_vector, check_weight
from headrace.quant.gguf import GGUF_TYPES, gguf_weight
from headrace.quant.weights import dense, stack

NAN, INF = float("nan"), float("inf")


def refuses(weight: Weight, named: str) -> None:
    with pytest.raises(CheckpointError, match=named) as caught:
        check_weight(weight, "the-file")
    assert "the-file" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_every_float_that_is_not_finite_is_found(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    values = torch.tensor([[0.0, -0.0, largest, -largest, 1.0, torch.finfo(dtype).tiny]]).to(dtype).repeat(5, 3)
    made = fp8_weight(values, torch.ones(5, 1), None, "w") if values.element_size() == 1 else dense(values, "w")
    check_weight(made, "the-file")
    for bad in (NAN, -NAN, INF, -INF) if values.element_size() > 1 else (NAN, -NAN):
        for at in ((0, 0), (4, 17)):
            kept = values[at].clone()
            values[at] = torch.tensor(bad).to(dtype)
            refuses(made, "'w'.*values hold NaN")
            values[at] = kept
    check_weight(made, "the-file")


def test_parts_columns_and_more_than_one_piece_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.quant.finite_values._PIECE", 64)
    whole = torch.zeros(40, 16)
    part = dense(whole[:, 4:12], "columns")
    check_weight(stack([dense(torch.zeros(3, 8), "first"), part]), "the-file")
    whole[39, 3] = whole[0, 12] = NAN
    check_weight(part, "the-file")
    whole[39, 4] = NAN
    refuses(stack([dense(torch.zeros(3, 8), "first"), part]), "'columns'")


def test_scales_and_biases_are_checked() -> None:
    codes, scales = torch.zeros(4, 16, dtype=torch.uint8), torch.ones(4, 2)
    scales[3, 1] = INF
    refuses(int4_weight(codes, 32, scales, None, None, "w"), "scales")
    refuses(int8_weight(codes.view(torch.int8), scales, None, None, "w"), "scales")
    refuses(fp8_weight(codes.view(torch.float8_e4m3fn), scales, None, "w"), "scales")
    exponents = torch.full((4, 1), 127, dtype=torch.uint8)
    check_weight(mxfp4_weight(codes, exponents, "w"), "the-file")
    exponents[2] = 255
    refuses(mxfp4_weight(codes, exponents, "w"), "scales")
    biased = dense(torch.zeros(4, 4), "w")
    biased.bias = torch.tensor([0.0, NAN, 0.0, 0.0])
    refuses(biased, "bias")
    with pytest.raises(CheckpointError, match=r"'norm\.weight'"):
        check_vector(torch.tensor([1.0, -INF]), "the-file", "norm.weight")


@pytest.mark.parametrize("value", [0.0, -1.0, NAN, INF])
def test_a_scale_of_a_matrix_or_of_inputs_must_be_positive(value: float) -> None:
    codes, scales = torch.zeros(4, 16, dtype=torch.uint8), torch.ones(4, 2).to(torch.float8_e4m3fn)
    check_weight(nvfp4_weight(codes, scales, torch.tensor(2.0), "w"), "the-file")
    refuses(nvfp4_weight(codes, scales, torch.tensor(value), "w"), "global_scale")
    static = int8_weight(codes.view(torch.int8), torch.ones(4, 1), None, None, "w")
    static.tensors["input_scale"] = torch.tensor([value])
    refuses(static, "input_scale")


@pytest.mark.parametrize("kind", sorted(GGUF_TYPES))
def test_scales_inside_of_blocks_are_checked(kind: int) -> None:
    """Each pair of bytes is set to a float16 NaN: exactly the pairs that make a value NaN are refused."""
    form = GGUF_TYPES[kind]
    blocks = torch.zeros(2, form.bytes, dtype=torch.uint8)
    weight = gguf_weight(form, blocks, form.elements, "w")
    check_weight(weight, "the-file")
    found = 0
    for at in range(form.bytes - 1):
        blocks[1, at : at + 2] = torch.tensor([0xFF, 0xFF])
        values = gguf.dequantize(blocks.numpy(), gguf.GGMLQuantizationType(kind))
        if np.isfinite(values).all() and form.name != "mxfp4":
            check_weight(weight, "the-file")
        elif not np.isfinite(values).all():
            found += 1
            refuses(weight, "values hold NaN")
        blocks[1] = 0
    assert found or form.name == "mxfp4"
