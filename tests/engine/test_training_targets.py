"""Heads for targets of several families: what they start from, and which cannot be trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models
import torch

from headrace.checkpoints.checkpoint import Checkpoint, open_checkpoint
from headrace.errors import ConfigError
from headrace.models.decoder import DecoderWeights
from headrace.training.answers import Answer
from headrace.training.head_layers import attend
from headrace.training.make_head import last_layers, make_head, tables_of
from headrace.training.settings import TrainingSettings

ANSWERS = [Answer([4, 5, 6], [7, 8, 7, 9, 7, 8], 0.0, 1, False)]
TOKENIZER: Any = SimpleNamespace(special_ids=frozenset({0, 1, 2, 3}), eos_token_ids=(2,))


def target(variant: str, path: Path) -> tuple[Any, Checkpoint, DecoderWeights]:
    model = tiny_models.save(variant, path)
    checkpoint = open_checkpoint(path)
    ops: Any = None
    return model, checkpoint, checkpoint.build(ops, 1).weights


def head(method: str, checkpoint: Checkpoint, weights: DecoderWeights, layers: int = 1, size: int = 32) -> Any:
    settings = TrainingSettings("m", method, "", 1, 8, 1, 1, 2, size, layers, 1e-3, 0, {})
    return make_head(settings, checkpoint, weights, ANSWERS, TOKENIZER)


@pytest.mark.parametrize("variant", ["llama", "qwen3", "llama-llama3-rope"])
def test_mtp_starts_as_the_targets_last_layer(variant: str, tmp_path: Path) -> None:
    """With its rotation and norms: it gives what the layer gives for the same inputs."""
    model, checkpoint, weights = target(variant, tmp_path)
    made = head("mtp", checkpoint, weights)
    layer, count = model.model.layers[-1], 9
    stored = dict(layer.named_parameters())
    for name, parameter in made.block.named_parameters():
        torch.testing.assert_close(parameter, stored[name], rtol=0, atol=1e-6)
    x = torch.randn(count, 64, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(count)
    with torch.no_grad():
        turned = model.model.rotary_emb(x[None], positions[None])
        mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
        wanted = layer(x[None], position_embeddings=turned, attention_mask=mask)
        wanted = (wanted[0] if isinstance(wanted, tuple) else wanted).view(count, -1)
        normed = made.block.input_layernorm(x)
        cache = made.block.self_attn.entries(normed, positions)
        q = made.block.self_attn.queries(normed, positions)
        mixed = made.block.finish(attend(q, cache, positions <= positions.unsqueeze(1), None), x)
    torch.testing.assert_close(mixed, wanted, rtol=1e-3, atol=1e-3)


def test_eagle3_starts_from_a_plain_layer_alone(tmp_path: Path) -> None:
    for variant, known in (("llama", True), ("qwen3", False), ("gemma3", False), ("llama-tied-bias", False)):
        (tmp_path / variant).mkdir()
        _, checkpoint, weights = target(variant, tmp_path / variant)
        made = head("eagle3", checkpoint, weights)
        found = last_layers(checkpoint, weights, 1, with_norms=False)
        assert len(found) == known
        for last in found:
            assert torch.equal(made.midlayer.mlp.up_proj.weight, last["mlp.up_proj.weight"])
            half = made.midlayer.self_attn.q_proj.weight[:, 64:]
            assert torch.equal(half, last["self_attn.q_proj.weight"])
        tables = tables_of(checkpoint, weights)
        assert torch.equal(made.lm_head.weight, tables.head[made.ids])
        assert len(made.ids) == 32


@pytest.mark.parametrize(("variant", "layers"), [("llama", 2), ("qwen3", 1), ("llama", 5), ("gemma3", 1)])
def test_dflash_starts_from_the_last_layers(variant: str, layers: int, tmp_path: Path) -> None:
    """In their order; those that the target lacks, and all of another family's, stay random."""
    model, checkpoint, weights = target(variant, tmp_path)
    made = head("dflash", checkpoint, weights, layers)
    stored = [dict(layer.named_parameters()) for layer in model.model.layers]
    for own, known in zip(list(made.layers)[::-1], stored[::-1], strict=False):
        for name, parameter in own.named_parameters():
            if name in known:
                assert torch.equal(parameter, known[name]) == (variant != "gemma3"), name
    if variant == "llama":
        attention = made.layers[-1].self_attn
        x = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            for kind in "qk":
                found = made.layers[-1].input_layernorm(x) @ getattr(attention, f"{kind}_proj").weight.T
                size = getattr(attention, f"{kind}_norm").weight
                torch.testing.assert_close(found.pow(2).mean().sqrt().expand(len(size)), size, rtol=0.05, atol=0)
    if variant != "gemma3":
        assert torch.equal(made.norm.weight, model.model.norm.weight)
        assert made.fc.weight[:, -64:].diagonal().mean() > 0.9


def test_layers_before_one_of_experts_are_not_taken(tmp_path: Path) -> None:
    _, checkpoint, weights = target("llama", tmp_path)
    *others, _, last = checkpoint.decoder_config.layers
    config = replace(checkpoint.decoder_config, layers=(*others, replace(last, dense=False), last))
    found = last_layers(replace(checkpoint, decoder_config=config), weights, 2, with_norms=True)
    assert [one["self_attn.o_proj.weight"].tolist() for one in found] == [
        weights.layers[-1].output.dequantize().tolist()
    ]


@pytest.mark.parametrize(("size", "own"), [(32, True), (160, False), (8192, False)])
def test_a_draft_vocabulary_as_large_as_the_targets_is_none(size: int, own: bool, tmp_path: Path) -> None:
    _, checkpoint, weights = target("llama", tmp_path)
    made = head("dflash", checkpoint, weights, size=size)
    assert ("draft_vocab_size" in made.settings()) == own == ("d2t" in made.tensors())


def test_tables_have_the_scale_and_the_cap_of_the_family(tmp_path: Path) -> None:
    model, checkpoint, weights = target("gemma3-cap", tmp_path)
    tables = tables_of(checkpoint, weights)
    embedding = model.model.embed_tokens
    with torch.no_grad():
        torch.testing.assert_close(tables.embedding, embedding(torch.arange(160)), rtol=1e-4, atol=1e-4)
        hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(2)) * 9
        wanted = torch.tanh(hidden @ model.lm_head.weight.T / 1.5) * 1.5
    torch.testing.assert_close(tables.logits(hidden), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(tables.logits(hidden, torch.tensor([5, 90])), wanted[:, [5, 90]], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", ["gemma3", "llama-tied-bias"])
def test_mtp_of_other_layers_is_refused(variant: str, tmp_path: Path) -> None:
    _, checkpoint, weights = target(variant, tmp_path)
    with pytest.raises(ConfigError, match=r"--method mtp: its layer is of the model's own kind.*choose eagle3 or"):
        head("mtp", checkpoint, weights)
