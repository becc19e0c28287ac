"""Every format of weights that the accelerators declare, in any form that a checkpoint may have it, on the Triton
products."""

from __future__ import annotations

import numpy as np
import pytest
from triton_support import BY_NAME, CPU, operator

from headrace.conformance.formats_tier import allowed
from headrace.conformance.operators_tier import nmse
from headrace.quant.random_weights import random_form
from headrace.types import QUANT_FORMATS

_MOST_TOKENS, _MOST_MATRICES = 8, 16
"""Cases that the interpreter runs in a second or two."""


@pytest.mark.parametrize("form", sorted(QUANT_FORMATS))
@pytest.mark.parametrize("name", ["linear", "embedding"])
def test_within_the_tolerance_of_the_kit(name: str, form: str) -> None:
    _check(name, form, 2)


@pytest.mark.parametrize("form", ["int4", "fp8_e4m3", "mxfp4", "gguf:q4_0", "gguf:q5_0"])
def test_experts_within_the_tolerance_of_the_kit(form: str) -> None:
    _check("moe", form, 1)


def _check(name: str, form: str, count: int) -> None:
    spec, own = BY_NAME[name], operator(name, dtype="bfloat16")
    for seed in range(60):
        rng = np.random.default_rng(seed)
        weights = random_form(rng, form)
        given = spec.generate(rng, CPU, "float32", weights)
        if len(given.get("x", ())) > _MOST_TOKENS or ("down" in given and len(given["down"].parts) > _MOST_MATRICES):
            continue
        wanted = spec.reference(**given)
        assert nmse(own(**given).float().numpy(), wanted.numpy()) <= allowed(spec, weights)
        count -= 1
        if not count:
            return
    raise AssertionError("no draw is small enough")
