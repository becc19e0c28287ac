"""Logits that are NaN or infinite: an error that names the first layer, never a healthy answer.

Weights that are not finite are refused when they are loaded; that check is left out here, so that the model makes such
logits, as one whose activations overflow does.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace import LLM, SamplingParams
from headrace.checkpoints import packing
from headrace.models import assemble

LONG = SamplingParams(max_tokens=8, temperature=1.0, seed=0, ignore_eos=True, n=2)
SCORED = SamplingParams(max_tokens=1, prompt_logprobs=1, temperature=0)


def damaged(source: Path, to: Path, tensor: str, value: float) -> Path:
    shutil.copytree(source, to)
    (file,) = to.glob("*.safetensors")
    weights = load_file(file)
    weights[tensor] = weights[tensor].clone()
    weights[tensor].view(-1)[3] = value
    save_file(weights, file, {"format": "pt"})
    return to


@pytest.mark.parametrize(
    ("tensor", "value", "where"),
    [
        ("model.layers.1.mlp.down_proj.weight", torch.nan, r"layer 1 \(linear with down\)"),
        ("model.layers.0.self_attn.o_proj.weight", torch.inf, r"layer 0 \(linear with output\)"),
        ("model.layers.1.input_layernorm.weight", torch.nan, r"layer 1 \(add_rms_norm with input_norm\)"),
        ("lm_head.weight", torch.nan, r"head \(logits\)"),
    ],
)
def test_the_first_layer_is_named(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensor: str, value: float, where: str
) -> None:
    monkeypatch.setattr(packing, "check_weight", lambda weight, path: None)
    monkeypatch.setattr(assemble, "check_vector", lambda vector, path, name: None)
    path = damaged(tiny_llama, tmp_path / "model", tensor, value)
    with LLM(str(path), platform="cpu", threads=1, num_blocks=50, packed_cache=0) as llm:
        for params in (LONG, SCORED):
            (found,) = llm.generate("Hello", params)
            for choice in found.outputs:
                assert (choice.finish_reason, choice.token_ids) == ("error", [])
                assert choice.error is not None
                assert re.search(f"logits are not finite: .* come from {where}$", choice.error), choice.error
        assert llm.stats().scheduler.running == 0
