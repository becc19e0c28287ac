"""Rotary tables against transformers' own frequencies, and far positions against exact arithmetic."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from headrace.models.config import Rope
from headrace.models.hf import read_rope
from headrace.models.rope import cos_sin_table, frequencies

CASES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn-all": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 16.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 1.25,
        "truncate": False,
    },
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_tables_equal_those_of_transformers(case: str) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        head_dim=128,
        max_position_embeddings=131072,
        rope_parameters=CASES[case],
    )
    rope = read_rope(CASES[case], config.to_dict(), "llama")
    positions = torch.arange(64)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, 64, 1), positions.unsqueeze(0))
    half = rope.rotary_dim // 2
    expected = torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=1)
    assert 2 * half == cos.shape[-1]
    torch.testing.assert_close(cos_sin_table(rope, 64), expected, atol=2e-5, rtol=0)


def test_far_positions_are_exact() -> None:
    table = cos_sin_table(Rope(1e4, 4), 100_001)
    assert table[100_000].tolist() == pytest.approx(
        [math.cos(1e5), math.cos(1e3), math.sin(1e5), math.sin(1e3)], abs=1e-7
    )
    assert table.dtype == torch.float32


def test_factors_take_the_place_of_scaling() -> None:
    scaled = Rope(1e4, 4, "llama3", 8.0, 64)
    factors = torch.tensor([1.0, 2.0])
    expected = cos_sin_table(Rope(1e4, 4), 9)
    got = cos_sin_table(scaled, 9, factors)
    assert torch.equal(got[:, 0], expected[:, 0])
    torch.testing.assert_close(got[8, 1], expected[4, 1])


def test_layers_without_positions_do_not_rotate() -> None:
    table = cos_sin_table(Rope(1e4, 8, "none"), 5)
    assert torch.equal(table, torch.cat([torch.ones(5, 4), torch.zeros(5, 4)], dim=1))


def test_frequencies_fall() -> None:
    values = frequencies(Rope(1e4, 64))
    assert values[0] == 1
    assert bool((values[1:] < values[:-1]).all())
