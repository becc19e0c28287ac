"""Multi-head latent attention over a paged cache of latents (DeepSeek-V2, arXiv:2405.04434), in its absorbed form."""

from __future__ import annotations

from headrace.kernels.spec import OpSpec

__all__ = ["SPEC"]

SPEC = OpSpec(
    name="mla",
    reference_path="headrace.kernels.mla.reference:mla",
    generate_path="headrace.kernels.mla.generate:generate",
    tolerance={"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5},
)
