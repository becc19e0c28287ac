"""Float weights quantized on load stay close and keep their bias; nothing is quantized twice."""

from __future__ import annotations

import pytest
import torch

from headrace.errors import UnsupportedModel
from headrace.kernels.weight import Weight
from headrace.quant.online import quantize_weight
from headrace.quant.weights import dense, stack


def made(rows: int = 24, columns: int = 64) -> Weight:
    weight = dense(torch.randn(rows, columns, generator=torch.Generator().manual_seed(3)), "w")
    weight.bias = torch.arange(rows, dtype=torch.float32)
    return weight


@pytest.mark.parametrize(("kind", "limit"), [("int8", 1e-4), ("int4", 2e-2)])
def test_values_stay_close_and_the_bias_stays(kind: str, limit: float) -> None:
    weight = made()
    found = quantize_weight(weight, kind)
    assert found.scheme == kind
    assert torch.equal(found.bias, weight.bias)
    error = (found.dequantize() - weight.dequantize()).square().mean() / weight.dequantize().square().mean()
    assert 0 < error < limit
    assert found.nbytes < weight.nbytes / 2
    assert not found.wide_inputs


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_rows_of_zeros_stay_zeros(kind: str) -> None:
    assert not quantize_weight(dense(torch.zeros(4, 32), "w"), kind).dequantize().any()


def test_stacks_are_quantized_part_by_part() -> None:
    found = quantize_weight(stack([made(), made(8)]), "int8")
    assert [part.scheme for part in found.parts] == ["int8", "int8"]
    assert found.shape == (32, 64)
    assert found.bias is not None


def test_a_quantized_weight_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="w is stored as int8"):
        quantize_weight(quantize_weight(made(), "int8"), "int4")


def test_int4_requires_complete_groups() -> None:
    with pytest.raises(UnsupportedModel, match="rows of 40"):
        quantize_weight(made(4, 40), "int4")


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_pieces_are_quantized_like_the_complete_matrix(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantize_weight(made(), kind)
    monkeypatch.setattr("headrace.quant.online._PIECE", 64 * 5)
    parts = quantize_weight(made(), kind)
    assert parts.shape == whole.shape
    assert all(torch.equal(parts.tensors[key], tensor) for key, tensor in whole.tensors.items())
