"""Input quantizers: grids, ties, saturation, zeros, and rows that do not depend on other rows."""

from __future__ import annotations

import pytest
import torch

from headrace.kernels.linear.activation import ACTIVATIONS, quantize_activation, round_e2m1, round_e4m3
from headrace.kernels.weight import Weight
from headrace.quant.weights import dense

Tensor = torch.Tensor


def weight(rule: str | None) -> Weight:
    made = dense(torch.zeros(1, 256))
    made.activation = rule
    made.tensors["input_scale"] = torch.tensor([0.05])
    made.tensors["input_global_scale"] = torch.tensor([300.0])
    return made


def sample(rows: int = 5, columns: int = 256) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3)) * 2


def test_no_rule_leaves_the_input_unchanged() -> None:
    x = sample()
    assert quantize_activation(x, weight(None)) is x


@pytest.mark.parametrize("rule", sorted(ACTIVATIONS))
def test_a_row_does_not_depend_on_other_rows(rule: str) -> None:
    x = sample()
    together = quantize_activation(x, weight(rule))
    alone = torch.cat([quantize_activation(row.unsqueeze(0), weight(rule)) for row in x])
    assert torch.equal(together, alone)
    louder = torch.cat([x[:1], x[1:] * 1000])
    assert torch.equal(quantize_activation(louder, weight(rule))[0], together[0])


@pytest.mark.parametrize("rule", sorted(ACTIVATIONS))
def test_the_error_is_the_formats(rule: str) -> None:
    x = sample()
    error = (quantize_activation(x, weight(rule)) - x).norm() / x.norm()
    assert 1e-4 < error < (0.15 if rule in ("mxfp4", "nvfp4") else 0.03)


@pytest.mark.parametrize("rule", sorted(ACTIVATIONS))
def test_zeros_stay_zeros_and_signs_mirror(rule: str) -> None:
    assert torch.equal(quantize_activation(torch.zeros(2, 256), weight(rule)), torch.zeros(2, 256))
    if rule.startswith(("fp8", "mxfp4", "nvfp4")):
        x = sample()
        assert torch.equal(quantize_activation(-x, weight(rule)), -quantize_activation(x, weight(rule)))


@pytest.mark.parametrize("rule", ["fp8_token", "mxfp4"])
def test_rounding_twice_equals_rounding_once(rule: str) -> None:
    once = quantize_activation(sample(), weight(rule))
    torch.testing.assert_close(quantize_activation(once, weight(rule)), once, atol=1e-6, rtol=1e-6)


def test_int8_uses_all_steps() -> None:
    x = torch.tensor([[2.0, -1.0, 0.5, 0.0]])
    expected = torch.tensor([[127, -64, 32, 0]]) * (2.0 / 127.5)
    torch.testing.assert_close(quantize_activation(x, weight("int8_token")), expected)


def test_asymmetric_int8_spans_the_row() -> None:
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    torch.testing.assert_close(quantize_activation(x, weight("int8_token_asymmetric")), x, atol=1e-6, rtol=0)


def test_static_scales_saturate() -> None:
    x = torch.tensor([[100.0, -100.0, 0.06]])
    got = quantize_activation(x, weight("int8_tensor"))
    torch.testing.assert_close(got, torch.tensor([[127 * 0.05, -128 * 0.05, 0.05]]))
    assert quantize_activation(x, weight("fp8_tensor")).max() == pytest.approx(448 * 0.05)


def test_each_group_of_128_has_its_scale() -> None:
    x = torch.cat([torch.full((1, 128), 1e-3), torch.full((1, 40), 1e3)], dim=1)
    torch.testing.assert_close(quantize_activation(x, weight("fp8_group128")), x)


def test_mx_scales_are_powers_of_two() -> None:
    """A largest magnitude of 7 is rounded up to 8 before the scale is computed, one of 6.9 is not."""
    for largest, step in ((6.9, 1.0), (7.1, 2.0), (0.0, 1.0)):
        x = torch.zeros(1, 32)
        x[0, 0], x[0, 1] = largest, step * 0.5
        got = quantize_activation(x, weight("mxfp4"))
        assert got[0, 0] == (8.0 if largest > 7 else 6.0 if largest else 0.0)
        assert got[0, 1] == step * 0.5


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (0.25, 0),
        (0.26, 0.5),
        (0.75, 1),
        (1.25, 1),
        (1.75, 2),
        (2.5, 2),
        (3.5, 4),
        (5, 4),
        (5.01, 6),
        (99, 6),
        (-0.75, -1),
    ],
)
def test_e2m1_rounds_ties_to_even(x: float, expected: float) -> None:
    assert round_e2m1(torch.tensor([x])).item() == expected


def test_every_e2m1_value_is_unchanged() -> None:
    values = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -6])
    assert torch.equal(round_e2m1(values), values)


def test_e4m3_saturates() -> None:
    assert round_e4m3(torch.tensor([1e9, -1e9, 448.0, 17.0])).tolist() == [448, -448, 448, 16]
