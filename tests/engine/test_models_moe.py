"""Mixture-of-experts models: logits and greedy tokens of tiny random models against transformers, from every kind of
checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from model_harness import logits_of, reference_ops
from moe_models import VARIANTS, export_moe, save_moe
from safetensors.torch import load_file, save_file
from tiny_models import load_reference, prompt, reference_logits

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.registry import from_gguf


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_logits_equal_those_of_transformers(variant: str, tmp_path: Path) -> None:
    model = save_moe(variant, tmp_path)
    ids = prompt(40)
    decoder = open_checkpoint(tmp_path).build(reference_ops(), 64)
    expected = reference_logits(model, ids)
    assert expected.std() > 0.1, "a model that says nothing proves nothing"
    torch.testing.assert_close(logits_of(decoder, ids), expected, atol=2e-4, rtol=0)


def test_a_shared_experts_gate_may_have_one_dimension(tmp_path: Path) -> None:
    """As some writers squeeze it; GGUFs come in both forms too (`test_loading_gguf.py`)."""
    model = save_moe("qwen2_moe", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    gates = [name for name in tensors if name.endswith("shared_expert_gate.weight")]
    assert gates
    save_file(tensors | {name: tensors[name].squeeze(0) for name in gates}, tmp_path / "model.safetensors")
    ids = prompt(20)
    decoder = open_checkpoint(tmp_path).build(reference_ops(), 64)
    torch.testing.assert_close(logits_of(decoder, ids), reference_logits(model, ids), atol=2e-4, rtol=0)


def test_narrow_experts_are_computed_in_float32(tmp_path: Path) -> None:
    save_moe("qwen3_moe", tmp_path, torch.bfloat16)
    checkpoint = open_checkpoint(tmp_path)
    decoder = checkpoint.build(reference_ops(), 64)
    assert checkpoint.facts().weight_dtype == "bfloat16"
    assert {part.scheme for part in decoder.weights.layers[0].gate_up.parts} == {"bfloat16"}
    ids = prompt(20)
    expected = reference_logits(load_reference(tmp_path), ids)
    torch.testing.assert_close(logits_of(decoder, ids), expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("variant", ["qwen3_moe", "mixtral", "qwen2_moe", "dots1", "glm4_moe"])
def test_gguf_experts_of_one_tensor(variant: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    model = export_moe(variant, path, gguf.GGMLQuantizationType[kind])
    decoder = open_checkpoint(path).build(reference_ops(), 64)
    ids = prompt(20)
    torch.testing.assert_close(logits_of(decoder, ids), reference_logits(model, ids), atol=2e-4, rtol=0)


@pytest.mark.parametrize("variant", ["dots1-window", "glm4_moe-bias"])
def test_ggufs_of_other_settings(variant: str, tmp_path: Path) -> None:
    """No norms on heads, biases, shares that don't sum to 1, no dense layer."""
    path = tmp_path / "m.gguf"
    model = export_moe(variant, path, gguf.GGMLQuantizationType.F32, sliding_window=None)
    decoder = open_checkpoint(path).build(reference_ops(), 64)
    ids = prompt(20)
    torch.testing.assert_close(logits_of(decoder, ids), reference_logits(model, ids), atol=2e-4, rtol=0)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_moe("mixtral", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    lost = "model.layers.1.block_sparse_moe.experts.2.w3.weight"
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=lost.replace(".", r"\.")):
        open_checkpoint(tmp_path).build(reference_ops(), 64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_experts_per_tok": 9}, "9 experts per token, but there are 8"),
        ({"moe_intermediate_size": None}, "'moe_intermediate_size' is missing"),
        ({"mlp_only_layers": 3}, "'mlp_only_layers' is 3: expected a list"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    import json

    save_moe("qwen3_moe", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topk_group": 1}, "3 experts per token out of 1 of 4 groups, but there are 8 experts"),
        ({"first_k_dense_replace": -1}, "'first_k_dense_replace' is -1"),
        ({"n_shared_experts": 0}, "'n_shared_experts' is 0"),
    ],
)
def test_impossible_settings_of_shared_experts_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    import json

    save_moe("dots1", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(tmp_path)


def test_a_layer_that_drafts_is_left_unread(tmp_path: Path) -> None:
    import json

    from safetensors.torch import load_file, save_file

    model = save_moe("glm4_moe", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["model.layers.1.mlp.gate.e_score_correction_bias"].abs().min() > 0
    extra = {"model.layers.3.eh_proj.weight": torch.ones(2, 4), "model.layers.3.enorm.weight": torch.ones(2)}
    config = json.loads((tmp_path / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({**tensors, **extra}, tmp_path / "model.safetensors", {"format": "pt"})
    ids = prompt(9)
    found = logits_of(open_checkpoint(tmp_path).build(reference_ops(), 64), ids)
    torch.testing.assert_close(found, reference_logits(model, ids), atol=2e-4, rtol=0)
    unknown = {"model.layers.4.enorm.weight": torch.ones(2)}
    save_file({**tensors, **unknown}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"layers\.4\.enorm"):
        open_checkpoint(tmp_path).build(reference_ops(), 64)


def test_a_gguf_counts_the_layer_that_drafts(tmp_path: Path) -> None:
    export_moe("glm4_moe", tmp_path / "m.gguf", gguf.GGMLQuantizationType.F32)
    metadata = dict(open_checkpoint(tmp_path / "m.gguf").metadata)
    config = from_gguf(metadata | {"glm4moe.nextn_predict_layers": 1, "glm4moe.block_count": 4})[1]
    assert (len(config.layers), config.draft_layers) == (3, 1)
    assert [layer.dense for layer in config.layers] == [True, False, False]
    with pytest.raises(UnsupportedModel, match="expert_gating_func = 1 is not supported"):
        from_gguf(metadata | {"glm4moe.expert_gating_func": 1})


def test_experts_of_a_family_without_them_are_refused(tmp_path: Path) -> None:
    import json

    from tiny_models import save

    save("qwen3", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"num_experts": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="num_experts = 8 is not supported"):
        open_checkpoint(tmp_path)
