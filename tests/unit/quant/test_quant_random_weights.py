"""Random weights in every format: valid, of the requested size, and with the variance of a layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.kernels.linear.activation import ACTIVATIONS, quantize_activation
from headrace.kernels.linear.cpu_pack_schemes import Coded, Dense, read
from headrace.quant.gguf import GGUF_TYPES
from headrace.quant.random_weights import QuantizedForm, random_form
from headrace.types import QUANT_FORMATS

CPU = torch.device("cpu")
FORMS = sorted(QUANT_FORMATS)


def test_every_block_type_and_every_container_is_a_format() -> None:
    named = {f"gguf:{kind.name}" for kind in GGUF_TYPES.values()}
    assert named | {"int4", "int8", "fp8_e4m3", "mxfp4", "nvfp4"} == QUANT_FORMATS


@pytest.mark.parametrize("form", FORMS)
def test_a_matrix_is_valid(form: str) -> None:
    for seed in range(8):
        rng = np.random.default_rng(seed)
        weights = random_form(rng, form)
        columns = weights.columns(200)
        weight = weights(rng, 19, columns, CPU, "float32", bias=seed % 2 == 0)
        assert weight.scheme == form
        assert weight.shape == (19, columns)
        assert 200 <= columns <= 256
        assert (weight.bias is not None) == (seed % 2 == 0)
        matrix = weight.dequantize()
        assert matrix.shape == weight.shape
        assert matrix.isfinite().all()
        assert 0.2 < float(matrix.square().mean()) * columns < 5


@pytest.mark.parametrize("form", FORMS)
def test_random_weights_repeat_for_a_seed_and_differ_between_seeds(form: str) -> None:
    def drawn(seed: int) -> torch.Tensor:
        rng = np.random.default_rng(seed)
        weights = random_form(rng, form)
        return weights(rng, 16, weights.columns(64), CPU, "float32", bias=False).dequantize()

    assert torch.equal(drawn(1), drawn(1))
    other = drawn(2)
    assert other.shape != drawn(1).shape or not torch.equal(other, drawn(1))


def test_forms_cover_all_choices_of_a_checkpoint() -> None:
    forms = [random_form(np.random.default_rng(seed), "int4") for seed in range(80)]
    assert {form.group for form in forms} == {0, 8, 16, 32, 64, 128}
    assert {form.zeros for form in forms} == {form.shuffled for form in forms} == {True, False}
    assert {form.activation for form in forms} == {None, "int8_token"}
    assert not any(form.shuffled and not form.group for form in forms)
    eights = [random_form(np.random.default_rng(seed), "fp8_e4m3") for seed in range(80)]
    assert {(form.group, form.activation) for form in eights} >= {(128, "fp8_group128"), (0, "fp8_tensor"), (0, None)}
    assert not any(form.zeros or form.shuffled for form in eights)


@pytest.mark.parametrize("form", FORMS)
def test_the_native_kernels_support_the_form(form: str) -> None:
    """The CPU packs every format that it declares, without dequantizing it."""
    rng = np.random.default_rng(3)
    weights = random_form(rng, form)
    weight = weights(rng, 16, weights.columns(256), CPU, "float32", bias=False)
    found = read(weight)
    if weights.group != 8:  # a run too short for a step
        assert isinstance(found, Coded) or (isinstance(found, Dense) and found.scales is not None)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_inputs_of_no_rows_are_rounded_to_none(activation: str) -> None:
    """The generators also make steps without tokens."""
    weight = QuantizedForm("int8", activation=activation)(np.random.default_rng(0), 16, 128, CPU, "float32", bias=False)
    assert quantize_activation(torch.zeros(0, 128), weight).shape == (0, 128)
