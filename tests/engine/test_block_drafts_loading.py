"""Checkpoints of block drafters that do not fit are refused with the key or tensor that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from block_draft_checkpoints import HIDDEN, VOCAB, save, tensors
from engine_harness import config_of
from safetensors.torch import load_file, save_file

from headrace.config import Config
from headrace.engine.startup import build_engine
from headrace.errors import CheckpointError, ConfigError, HeadraceError, ModelNotFound, UnsupportedModel


def build(target: Path, drafter: Path, method: str = "dflash", **changes: Any) -> Any:
    config = config_of(target, speculate=f"{method}:{drafter}").model_copy(update=changes)
    return build_engine(config, lambda stage, done: None)


@pytest.mark.parametrize(
    ("changes", "error", "names"),
    [
        ({"vocab_size": 300}, ConfigError, "vocab_size is 300, and the target's is 260"),
        ({"hidden_size": 64}, ConfigError, "target_hidden_size is 64, and the target's is 32"),
        ({"num_target_layers": 9}, ConfigError, "num_target_layers is 9"),
        ({"dflash_config": {"mask_token_id": 5, "target_layer_ids": [2]}}, CheckpointError, "target_layer_ids"),
        ({"dflash_config": {"mask_token_id": 260, "target_layer_ids": [0, 1]}}, CheckpointError, "mask_token_id"),
        ({"dflash_config": {"target_layer_ids": [0, 1]}}, CheckpointError, "mask_token_id"),
        ({"dflash_config": {"mask_token_id": 5, "target_layer_ids": [0]}}, CheckpointError, "fc.weight"),
        ({"architectures": ["LlamaForCausalLM"]}, UnsupportedModel, "LlamaForCausalLM"),
        ({"head_dim": 8}, CheckpointError, "q_proj"),
        ({"intermediate_size": 97}, CheckpointError, "gate_proj"),
    ],
    ids=str,
)
def test_wrong_settings(
    changes: dict[str, Any], error: type[HeadraceError], names: str, tiny_llama: Path, tmp_path: Path
) -> None:
    drafter = save("zlab", tmp_path / "wrong", changes)
    with pytest.raises(error, match=names):
        build(tiny_llama, drafter)


@pytest.mark.parametrize(
    ("layout", "more", "error", "names"),
    [
        ("zlab", {"hidden_norm.weight": None}, CheckpointError, "hidden_norm.weight"),
        ("zlab", {"layers.1.mlp.up_proj.weight": torch.zeros(3, 3)}, CheckpointError, "layers.1.mlp.up_proj"),
        ("zlab", {"fusion_weights": torch.zeros(3)}, UnsupportedModel, "fusion_weights"),
        ("zlab", {"norm.weight": torch.full((HIDDEN,), torch.nan)}, CheckpointError, "norm.weight"),
        ("zlab-mask-vector", {"mask_embedding": torch.zeros(7)}, CheckpointError, "mask_embedding"),
        ("zlab", {"mask_embedding": torch.zeros(HIDDEN)}, CheckpointError, "mask_token_id.*mask_embedding.*leave out"),
        ("zlab", {"mask_embedding.weight": torch.zeros(HIDDEN)}, CheckpointError, "mask_token_id.*mask_embedding"),
        ("speculators", {"d2t": None}, CheckpointError, "d2t"),
        ("speculators", {"d2t": torch.zeros(4, dtype=torch.int64)}, CheckpointError, "d2t.*draft_vocab_size"),
        ("speculators", {"d2t": torch.full((90,), 200)}, CheckpointError, "d2t.*vocabulary of 260"),
        ("speculators", {"d2t": -torch.arange(90)}, CheckpointError, "d2t.*not ascending"),
        ("speculators", {"lm_head.weight": None}, CheckpointError, "lm_head.weight"),
        (
            "dflash2",
            {"candidate_selector.successor_codebook": torch.zeros(2, 8)},
            CheckpointError,
            "successor_codebook",
        ),
        ("dflash2", {"layers.0.mlp_conv.base_kernel": None}, CheckpointError, "base_kernel"),
    ],
)
def test_wrong_tensors(
    layout: str,
    more: dict[str, Any],
    error: type[HeadraceError],
    names: str,
    tiny_llama: Path,
    tmp_path: Path,
) -> None:
    drafter = save(layout, tmp_path / "wrong", None, **more)
    with pytest.raises(error, match=names):
        build(tiny_llama, drafter)


def test_the_other_method_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="drafts with dspark: write dspark:"):
        build(tiny_llama, save("dspark", tmp_path / "dspark"))
    with pytest.raises(ConfigError, match="drafts with dflash: write dflash:"):
        build(tiny_llama, save("zlab", tmp_path / "zlab"), "dspark")


def test_no_checkpoint(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nowhere"):
        build(tiny_llama, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="the method dflash needs a drafter: write it as dflash:CHECKPOINT"):
        Config.model_validate({"model": {"model": "m"}, "scheduler": {"speculate": "dflash"}})


def test_equal_matrices_are_shared_and_others_kept(tiny_llama: Path, tmp_path: Path) -> None:
    target = load_file(tiny_llama / "model.safetensors")
    copies = {"embed_tokens.weight": target["model.embed_tokens.weight"], "lm_head.weight": target["lm_head.weight"]}
    other = {**copies, "lm_head.weight": copies["lm_head.weight"] + 1}
    for at, (own, shared) in enumerate(((copies, True), (other, False))):
        engine = build(tiny_llama, save("dspark", tmp_path / str(at), None, **own), "dspark")
        weights, model = engine.blocks._drafter.weights, engine.own.weights
        assert weights.embedding is model.embedding
        assert (weights.head is model.head) == shared
        engine.close()


def test_names_with_a_prefix_and_a_checkpoint_in_parts(tiny_llama: Path, tmp_path: Path) -> None:
    drafter = save("zlab", tmp_path / "parts")
    whole = {f"model.{name}": tensor for name, tensor in tensors("zlab").items()}
    (drafter / "model.safetensors").unlink()
    names, index = sorted(whole), dict[str, str]()
    for at in range(2):
        part, file = names[at::2], f"model-{at + 1}-of-2.safetensors"
        save_file({name: whole[name].contiguous() for name in part}, drafter / file)
        index |= dict.fromkeys(part, file)
    (drafter / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    engine = build(tiny_llama, drafter)
    assert engine.blocks.drafts == 4
    assert engine.info.vocab_size == VOCAB
    engine.close()
