"""Launches of the operators over latents and recurrent states, as `shipped` records them: shapes of DeepSeek-V3,
Qwen3-Next and Mamba-2 models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from headrace.kernels.ops import Batch
from headrace.kernels.paged import DTYPES
from headrace.kernels.recurrence import CHUNK

__all__ = ["PRODUCTS", "Call", "latents", "scans"]

Call = tuple[str, str | None, bool, str, dict[str, Any]]
"""(case, matrix, core, operator, its arguments)"""
PRODUCTS = frozenset({"latent_decode_kernel", "latent_prefill_kernel", "delta_kernel", "ssd_kernel"})
"""Kernels whose products a matrix unit must do."""
_SLOTS = 4


def latents(batch: Batch) -> Iterator[Call]:
    """128 heads, rank 512, 64 rotated."""
    for store, dtype in (("bfloat16", "bfloat16"), ("float8_e4m3", "bfloat16"), ("float32", "float32")):
        given = {
            "q": torch.zeros(len(batch.token_ids), 128 * 576, dtype=DTYPES[dtype]),
            "batch": batch,
            "latents": torch.zeros(3, 16, 576).to(DTYPES[store]),
            "scales": torch.ones(3, 16) if store == "float8_e4m3" else None,
            "rank": 512,
            "scale": 192**-0.5,
        }
        yield f"mla-{store}", None if dtype == "float32" else "any", store == "bfloat16", "mla", given


def scans(batch: Batch) -> Iterator[Call]:
    """16 and 32 heads of 128 by 128; 64 heads of 64 by 128 in 8 groups; a convolution of 4 taps."""
    for dtype in ("bfloat16", "float32"):
        matrix, core = None if dtype == "float32" else "any", dtype == "bfloat16"
        yield f"gated_delta_rule-{dtype}", matrix, core, "gated_delta_rule", _delta(batch, dtype)
        yield f"mamba2_scan-{dtype}", matrix, core, "mamba2_scan", _mamba2(batch, dtype)
    given = {"weight": torch.zeros(8192, 4), "bias": None, "silu": True, "batch": batch}
    pool = {"state": torch.zeros(_SLOTS, 3, 8192), "x": torch.zeros(len(batch.token_ids), 8192, dtype=torch.bfloat16)}
    yield "causal_conv1d", None, True, "causal_conv1d", {**given, **pool}


def _delta(batch: Batch, dtype: str) -> dict[str, Any]:
    tokens, kept = len(batch.token_ids), 48 * 128
    return {
        "qkv": torch.zeros(tokens, 64 * 128, dtype=DTYPES[dtype]),
        "decay": torch.zeros(tokens, 32),
        "strength": torch.zeros(tokens, 32),
        "batch": batch,
        "state": torch.zeros(_SLOTS, 32, 128, 128),
        "pending": torch.zeros(_SLOTS, CHUNK, kept + 64),
        "num_k_heads": 16,
        "scale": 128**-0.5,
        "normalise": True,
    }


def _mamba2(batch: Batch, dtype: str) -> dict[str, Any]:
    tokens, kept = len(batch.token_ids), 64 * 64 + 8 * 128
    return {
        "xbc": torch.zeros(tokens, kept + 8 * 128, dtype=DTYPES[dtype]),
        "dt": torch.zeros(tokens, 64, dtype=DTYPES[dtype]),
        "a": torch.zeros(64),
        "d": torch.zeros(64),
        "dt_bias": torch.zeros(64),
        "dt_limit": (0.0, float("inf")),
        "batch": batch,
        "state": torch.zeros(_SLOTS, 64, 64, 128),
        "pending": torch.zeros(_SLOTS, CHUNK, kept + 64),
        "num_groups": 8,
    }
