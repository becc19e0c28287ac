"""Heads for multi-token prediction whose layer is a mixture of experts: GLM-4.5's, and one of Qwen's names.

The plain reading takes transformers' own layer: a model of one layer more is saved, and the last of them becomes the
head's. The definition around it is written out here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiny_models
import torch
from draft_engine import watch
from engine_harness import alone
from moe_models import make_moe
from plain_heads import Plain, Tensor, Tensors
from safetensors.torch import load_file, save_file
from server_harness import make_model
from test_draft_heads import Rounds, balanced, greedy, serve
from test_engine_bits import VOCAB

LAYERS = 3


class Names(NamedTuple):
    """Of a head's tensors."""

    layer: str
    enorm: str
    hnorm: str
    projection: str
    norm: str


@dataclass(frozen=True)
class Case:
    variant: str
    names: Names
    zero_first: bool
    recycles_normed: bool


_LAST = f"model.layers.{LAYERS}."
DEEPSEEK = Names(_LAST, f"{_LAST}enorm", f"{_LAST}hnorm", f"{_LAST}eh_proj", f"{_LAST}shared_head.norm")
QWEN = Names("mtp.layers.0.", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
CASES = {
    "glm-4.5": Case("glm4_moe", DEEPSEEK, zero_first=True, recycles_normed=False),
    "glm-4.5-bias": Case("glm4_moe-bias", DEEPSEEK, zero_first=True, recycles_normed=False),
    "qwen": Case("qwen3_moe", QWEN, zero_first=False, recycles_normed=True),
}


def save(case: Case, directory: Path) -> tuple[Any, Any, Tensors]:
    """The target with its head: (transformers' model of the target, the head's layer, the head's other tensors)."""
    make_model(directory)
    model = make_moe(case.variant, vocab_size=VOCAB, max_position_embeddings=512, num_hidden_layers=LAYERS + 1)
    model.save_pretrained(directory)
    hidden, generator = model.config.hidden_size, torch.Generator().manual_seed(8)
    names, own = case.names, dict[str, Tensor]()
    for name in (names.enorm, names.hnorm, names.norm):
        own[f"{name}.weight"] = 1 + 0.2 * torch.randn(hidden, generator=generator)
    own[f"{names.projection}.weight"] = torch.randn(hidden, 2 * hidden, generator=generator) * 1.5 / hidden**0.5
    stored = load_file(directory / "model.safetensors")
    moved = {name.replace(_LAST, names.layer): tensor for name, tensor in stored.items()}
    save_file({**moved, **own}, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config |= {"num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1}
    config.pop("layer_types", None)
    (directory / "config.json").write_text(json.dumps(config))
    layer = model.model.layers[LAYERS]
    model.model.layers = model.model.layers[:LAYERS]
    model.config.num_hidden_layers = LAYERS
    return model, layer, own


def plain(case: Case, target: Any, layer: Any, w: Tensors) -> Plain:
    """As the definition says: the projection of both normed inputs, the layer, the norm, the target's output matrix."""
    names = case.names

    def rms(x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + target.config.rms_norm_eps)
        return x * scale * w[f"{name}.weight"]

    def features(tokens: list[int]) -> Tensor:
        found: Tensor = target(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0]
        return found

    def entries(h: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat([rms(embedded, names.enorm), rms(h, names.hnorm)], -1)
        x = (joined @ w[f"{names.projection}.weight"].T)[None]
        count = x.shape[1]
        mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
        angles = target.model.rotary_emb(x, torch.arange(count)[None])
        u = layer(x, attention_mask=mask, position_embeddings=angles)[0]
        out = rms(u, names.norm)
        logits = out @ target.get_output_embeddings().weight.detach().T
        return logits, out if case.recycles_normed else u

    return Plain(features, entries, target.get_input_embeddings().weight.detach(), case.zero_first)


@pytest.mark.parametrize("name", CASES)
def test_a_head_with_experts_drafts_as_it_is_defined(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    reading = plain(case, *save(case, tmp_path))
    requests = greedy(3)
    expected = alone(tmp_path, requests)
    built, rounds = watch(monkeypatch), Rounds(monkeypatch)
    serve(tmp_path, requests, expected, "mtp", chunk=24)
    rounds.check(reading, 30)
    balanced(built)


def test_the_target_is_read_as_one_without_a_head(tmp_path: Path) -> None:
    """The reading's own target: what is saved gives its logits."""
    model, _, _ = save(CASES["glm-4.5"], tmp_path)
    again = tiny_models.load_reference(tmp_path)
    ids = tiny_models.prompt(12, VOCAB)
    assert torch.equal(tiny_models.reference_logits(again, ids), tiny_models.reference_logits(model, ids))
