"""`moe` with a single expert under a sigmoid: how models call an expert that every token goes through."""

from __future__ import annotations

import pytest
from test_triton_linear import WEIGHTS
from test_triton_moe import SPEC, mixture
from triton_support import run

from headrace.models.moe import SHARED_ROUTING


@pytest.mark.parametrize("name", ["int4_32", "fp8_channel"])
def test_one_expert_of_every_token(name: str) -> None:
    arguments = mixture(WEIGHTS[name], tokens=3, experts=1)
    run(SPEC, {**arguments, "routing": SHARED_ROUTING}, SPEC.tolerance["bfloat16"], dtype="bfloat16")
