"""Tier 3, quantized weights: every declared format in every operator that takes a weight, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.conformance.explore import explore
from headrace.conformance.nmse import WorstError
from headrace.conformance.operators_tier import need_arithmetic, need_dtype, need_operator, reference
from headrace.conformance.tiers import tier
from headrace.conformance.transfer import call
from headrace.kernels.registry import OPS, OPTIONAL
from headrace.kernels.spec import OpSpec
from headrace.platforms.interface import Device
from headrace.quant.random_weights import QuantizedForm, random_form
from headrace.types import QUANT_FORMATS

__all__ = ["FormatsTier", "allowed"]

_WITH_WEIGHTS = ("linear", "logits", "embedding", "moe")
_SPECS = [spec for spec in (*OPS, *OPTIONAL) if spec.name in _WITH_WEIGHTS]
_OPTIONAL = {spec.name for spec in OPTIONAL}
_DTYPES = ("float32", "bfloat16", "float16")
_WIDE, _BYTE = 2e-5, 1e-4
"""Limits for products of inputs with 16 bits, and of inputs that are rounded to 8 bits in blocks of 32, as GGUF's
formats allow."""
_TWICE = 10
"""Factor of the limit for an expert: the input of its second product is the rounded result of the first."""
_FLIPPED = 1e-2
"""Limit if that result is rounded to 4-bit floats, which are up to a factor of 1.5 apart."""
_HOST = torch.device("cpu")


def allowed(spec: OpSpec, form: QuantizedForm) -> float:
    """Largest normalized mean squared error with weights of this form."""
    if spec.name == "embedding":
        return spec.tolerance["bfloat16"]
    usual = _BYTE if form.format.startswith("gguf:") else _WIDE
    if spec.name != "moe":
        return usual
    return _FLIPPED if form.activation in ("mxfp4", "nvfp4") else _TWICE * usual


@tier("operators")
class FormatsTier:
    @pytest.mark.parametrize("form", sorted(QUANT_FORMATS))
    @pytest.mark.parametrize("spec", _SPECS, ids=lambda spec: spec.name)
    def test_format_against_reference(
        self, device: Device, spec: OpSpec, form: str, examples: int, worst: WorstError
    ) -> None:
        need_arithmetic(device)
        able = device.capabilities()
        if form not in able.quant_formats:
            pytest.skip(f"weight format {form} is not declared")
        if spec.name in _OPTIONAL:
            need_operator(device, spec)
        dtype = next((name for name in _DTYPES if name in able.dtypes), "float32")
        need_dtype(device, dtype)

        def check(rng: np.random.Generator) -> None:
            weights = random_form(rng, form)
            arguments = spec.generate(rng, _HOST, dtype, weights)
            (wanted,), found = reference(spec, arguments), call(device, spec.name, arguments)
            worst.near(found, wanted, max(spec.tolerance[dtype], allowed(spec, weights)))

        # An expert layer has dozens of matrices.
        explore(check, -(-examples // 3) if spec.name == "moe" else examples)
