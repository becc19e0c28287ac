"""Quantized weights in the kit: skipped if a format is not declared, green if its results are right, failed if they are
wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from broken_backends import CAPABILITIES, MisplacesTheZeroPoint, Sound, SwapsNibbles

from headrace.conformance.contract_tier import ContractTier
from headrace.conformance.formats_tier import FormatsTier, allowed
from headrace.conformance.nmse import WorstError
from headrace.kernels.registry import OPS, OPTIONAL
from headrace.platforms.cpu import CpuPlatform
from headrace.platforms.interface import Device
from headrace.quant.random_weights import QuantizedForm, random_form
from headrace.types import QUANT_FORMATS, Capabilities

SPECS = {spec.name: spec for spec in (*OPS, *OPTIONAL)}


class DeclaresAll(Sound):
    def capabilities(self) -> Capabilities:
        return replace(CAPABILITIES, quant_formats=QUANT_FORMATS)


class DeclaresOneTooMany(Sound):
    def capabilities(self) -> Capabilities:
        return replace(CAPABILITIES, quant_formats=frozenset({"int5"}))


def check(device: Device, operator: str, form: str, examples: int = 6) -> WorstError:
    """The kit's own test; the worst error that it measured."""
    worst = WorstError(operator, form)
    try:
        FormatsTier().test_format_against_reference(device, SPECS[operator], form, examples, worst)
    finally:
        device.close()
    return worst


def test_what_is_not_declared_skips_with_a_reason() -> None:
    with pytest.raises(pytest.skip.Exception, match="weight format gguf:q4_k is not declared"):
        check(Sound(), "linear", "gguf:q4_k")


def test_experts_are_asked_only_of_those_that_have_the_operator() -> None:
    with pytest.raises(pytest.skip.Exception, match="the optional operator moe is not declared"):
        check(DeclaresAll(), "moe", "int4")


@pytest.mark.parametrize("operator", ["linear", "logits", "embedding"])
@pytest.mark.parametrize("form", sorted(QUANT_FORMATS))
def test_the_reference_is_right(form: str, operator: str) -> None:
    found = check(DeclaresAll(), operator, form, 3)
    assert found.nmse == 0.0
    assert found.allowed <= 1e-4


@pytest.mark.parametrize("operator", ["linear", "moe"])
@pytest.mark.parametrize("form", ["int4", "fp8_e4m3", "gguf:q4_k"])
def test_the_cpu_is_within_tolerance(form: str, operator: str) -> None:
    found = check(CpuPlatform().open(0, {}), operator, form)
    assert found.nmse <= found.allowed


@pytest.mark.parametrize("fault", [MisplacesTheZeroPoint, SwapsNibbles])
def test_a_fault_is_far_from_what_is_allowed(fault: type[Sound]) -> None:
    """Not near enough to be mistaken for rounding."""
    with pytest.raises(AssertionError, match="linear: NMSE") as caught:
        check(fault(), "linear", "int4")
    said = str(caught.value).split("NMSE ")[1].split(" ")[0]
    assert float(said) > 1e-3


def test_formats_that_cannot_be_drawn_cannot_be_declared() -> None:
    device = DeclaresOneTooMany()
    with pytest.raises(AssertionError, match="only formats for which the kit has random weights"):
        ContractTier().test_capabilities_use_known_words(device)
    device.close()


def test_rounded_experts_may_err_more() -> None:
    plain, narrow = QuantizedForm("mxfp4", 32), QuantizedForm("mxfp4", 32, activation="mxfp4")
    assert allowed(SPECS["linear"], plain) < allowed(SPECS["moe"], plain) < allowed(SPECS["moe"], narrow)
    assert allowed(SPECS["linear"], narrow) == allowed(SPECS["linear"], plain)


def test_no_call_is_too_small_to_be_measured() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        weight = SPECS["linear"].generate(rng, "cpu", "float32", random_form(rng, "int8"))["weight"]
        assert weight.shape[0] >= 16
