"""Heads for targets of several families: what they start from, and which cannot be trained."""

from __future__ import annotations

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
from headrace.training.make_head import last_layer, make_head, tables_of
from headrace.training.settings import TrainingSettings

ANSWERS = [Answer([4, 5, 6], [7, 8, 7, 9, 7, 8], 0.0, 1, False)]
TOKENIZER: Any = SimpleNamespace(special_ids=frozenset({0, 1, 2, 3}), eos_token_ids=(2,))


def target(variant: str, path: Path) -> tuple[Any, Checkpoint, DecoderWeights]:
    model = tiny_models.save(variant, path)
    checkpoint = open_checkpoint(path)
    ops: Any = None
    return model, checkpoint, checkpoint.build(ops, 1).weights


def head(method: str, checkpoint: Checkpoint, weights: DecoderWeights) -> Any:
    settings = TrainingSettings("m", method, "", 1, 8, 1, 1, 2, 32, 1, 1e-3, 0, {})
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
    x, positions = torch.randn(count, 64), torch.arange(count)
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
        found = last_layer(checkpoint, weights, with_norms=False)
        assert (found is not None) == known
        if found is not None:
            assert torch.equal(made.midlayer.mlp.up_proj.weight, found["mlp.up_proj.weight"])
            half = made.midlayer.self_attn.q_proj.weight[:, 64:]
            assert torch.equal(half, found["self_attn.q_proj.weight"])
        tables = tables_of(checkpoint, weights)
        assert torch.equal(made.lm_head.weight, tables.head[made.ids])
        assert len(made.ids) == 32


def test_tables_have_the_scale_and_the_cap_of_the_family(tmp_path: Path) -> None:
    model, checkpoint, weights = target("gemma3-cap", tmp_path)
    tables = tables_of(checkpoint, weights)
    embedding = model.model.embed_tokens
    with torch.no_grad():
        torch.testing.assert_close(tables.embedding, embedding(torch.arange(160)), rtol=1e-4, atol=1e-4)
        hidden = torch.randn(3, 64) * 9
        wanted = torch.tanh(hidden @ model.lm_head.weight.T / 1.5) * 1.5
    torch.testing.assert_close(tables.logits(hidden), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(tables.logits(hidden, torch.tensor([5, 90])), wanted[:, [5, 90]], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", ["gemma3", "llama-tied-bias"])
def test_mtp_of_other_layers_is_refused(variant: str, tmp_path: Path) -> None:
    _, checkpoint, weights = target(variant, tmp_path)
    with pytest.raises(ConfigError, match=r"--method mtp: its layer is of the model's own kind.*choose eagle3 or"):
        head("mtp", checkpoint, weights)
