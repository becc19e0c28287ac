"""Optional operators in the kit: skipped with a reason if a device has none, green if they are right, failed if they
are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from broken_backends import Sound

from headrace.conformance.nmse import WorstError
from headrace.conformance.operators_tier import OperatorsTier
from headrace.kernels.registry import OPTIONAL
from headrace.kernels.spec import OpSpec

NAMES = ("mla", "gated_delta_rule", "mamba2_scan", "causal_conv1d")
SPECS = [spec for spec in OPTIONAL if spec.name in NAMES]


class Declares(Sound):
    """Its optional operators are the references."""

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        return spec.reference if spec in OPTIONAL else None


class ForgetsTheState(Sound):
    """Every sequence starts from an empty cache of latents or an empty state."""

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        def fault(**given: Any) -> torch.Tensor:
            name = "latents" if "latents" in given else "state"
            found: torch.Tensor = spec.reference(**{**given, name: torch.zeros_like(given[name])})
            return found

        return fault if spec in OPTIONAL else None


def _check(device: Sound, spec: OpSpec) -> WorstError:
    """The kit's own test of the operator; the worst error that it measured."""
    worst = WorstError(spec.name, "float32")
    try:
        OperatorsTier().test_optional_against_reference(device, spec, "float32", 8, worst)
    finally:
        device.close()
    return worst


def test_all_are_registered() -> None:
    assert tuple(spec.name for spec in SPECS) == NAMES


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_undeclared_skips_with_a_reason(spec: OpSpec) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"the optional operator {spec.name} is not declared"):
        _check(Sound(), spec)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_declared_is_tested(spec: OpSpec) -> None:
    worst = _check(Declares(), spec)
    assert worst.nmse == 0.0
    assert worst.allowed == spec.tolerance["float32"]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_fault_is_caught(spec: OpSpec) -> None:
    with pytest.raises(AssertionError, match=f"{spec.name}: NMSE"):
        _check(ForgetsTheState(), spec)
