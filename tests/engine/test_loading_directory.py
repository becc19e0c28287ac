"""Hugging Face directories: shards, damaged and missing files, ends of sequence, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_harness import logits_of, reference_ops
from safetensors.torch import load_file, save_file
from shared_models import check_against_reference, shared_model
from tiny_models import make, prompt, reference_logits, save

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.errors import CheckpointError, HeadraceError, ModelNotFound, UnsupportedModel


def edit(directory: Path, **changes: Any) -> None:
    """Change fields of the config; None removes one."""
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def edit_tensors(directory: Path, change: Any) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def build(directory: Path) -> Any:
    return open_checkpoint(directory).build(reference_ops(), 64)


def test_shards_are_read_through_the_index(tmp_path: Path) -> None:
    model = make("qwen3")
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ids = prompt(20)
    torch.testing.assert_close(logits_of(build(tmp_path), ids), reference_logits(model, ids), atol=1e-4, rtol=0)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    make("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    victim = sorted(tmp_path.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(CheckpointError, match=f"{victim.name}.*missing"):
        open_checkpoint(tmp_path)


def test_a_stale_index_beside_a_complete_file_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = make("llama")
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    tensors = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    build(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    build(tmp_path)
    assert not caplog.records, "a whole index is no stale one"
    for left in (len(shards) - 1, 0):
        for shard in shards[left:]:
            shard.unlink(missing_ok=True)
        caplog.clear()
        ids = prompt(9)
        torch.testing.assert_close(logits_of(build(tmp_path), ids), reference_logits(model, ids), atol=1e-4, rtol=0)
        assert ["index.json" in record.message for record in caplog.records] == [True]


def test_the_stale_index_of_another_writer_is_ignored() -> None:
    check_against_reference(shared_model("stale_index"))


@pytest.mark.parametrize("file", ["../elsewhere.safetensors", "/etc/passwd", 3])
def test_an_index_may_not_leave_the_directory(file: Any, tmp_path: Path) -> None:
    save("llama", tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": file}}))
    with pytest.raises(CheckpointError, match="weight_map"):
        open_checkpoint(tmp_path)


def test_an_index_that_names_a_missing_tensor(tmp_path: Path) -> None:
    save("llama", tmp_path)
    index = {"weight_map": {"absent.weight": "model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model.safetensors.*'absent.weight'"):
        open_checkpoint(tmp_path)


def test_a_truncated_file_names_itself_and_the_first_lost_tensor(tmp_path: Path) -> None:
    save("llama", tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    length = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + length])
    last = max((e["data_offsets"][1], n) for n, e in header.items() if n != "__metadata__")[1]
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.path == str(path)
    assert caught.value.tensor == last


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\xff" * 64, b"\2\0\0\0\0\0\0\0[]", b"\2\0\0\0\0\0\0\0{}x"])
def test_any_other_damage_names_the_file(content: bytes, tmp_path: Path) -> None:
    save("llama", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(HeadraceError, match=str(tmp_path)):
        build(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save("llama", tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    edit_tensors(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match="missing") as caught:
        build(tmp_path)
    assert (caught.value.path, caught.value.tensor) == (str(tmp_path), name)


def test_a_wrong_shape_is_named_with_both(tmp_path: Path) -> None:
    save("llama", tmp_path)
    edit(tmp_path, vocab_size=161)
    with pytest.raises(CheckpointError, match=r"embed_tokens.*\[160, 64\].*\[161, 64\]"):
        build(tmp_path)


def test_a_wrong_type_is_named(tmp_path: Path) -> None:
    save("llama", tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    edit_tensors(tmp_path, lambda tensors: tensors.update({name: tensors[name].int()}))
    with pytest.raises(CheckpointError, match="int32"):
        build(tmp_path)


def test_an_unused_tensor_is_refused(tmp_path: Path) -> None:
    """Its arithmetic would be missing."""
    save("llama", tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update({"model.layers.0.self_attn.sinks": torch.ones(4)}))
    with pytest.raises(UnsupportedModel, match=r"self_attn\.sinks"):
        build(tmp_path)


def test_leftovers_of_old_writers_are_ignored(tmp_path: Path) -> None:
    save("llama-tied-bias", tmp_path)

    def litter(tensors: Any) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    edit_tensors(tmp_path, litter)
    build(tmp_path)


def test_a_head_that_differs_is_used_although_the_settings_tie_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save("llama-tied-bias", tmp_path)
    embedding = build(tmp_path).weights.embedding
    edit_tensors(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    tied = build(tmp_path).weights
    assert tied.head is tied.embedding
    assert not caplog.records
    own = torch.randn(embedding.shape)
    edit_tensors(tmp_path, lambda t: t.update({"lm_head.weight": own}))
    found = build(tmp_path).weights
    assert torch.equal(found.head.dequantize(), own)
    assert torch.equal(found.embedding.dequantize(), embedding.dequantize())
    assert [("own is used" in record.message) for record in caplog.records] == [True]


def test_the_head_of_another_writer_is_used_although_the_settings_tie_it() -> None:
    decoder = check_against_reference(shared_model("tied_but_differs"))
    assert decoder.weights.head is not decoder.weights.embedding


def test_other_formats_are_not_read(tmp_path: Path) -> None:
    save("llama", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="safetensors"):
        open_checkpoint(tmp_path)


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    save("llama", tmp_path)
    edit(tmp_path, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    (tmp_path / "modeling_evil.py").write_text("raise SystemExit('ran')")
    build(tmp_path)
    edit(tmp_path, architectures=["EvilForCausalLM"])
    with pytest.raises(UnsupportedModel, match=r"'EvilForCausalLM'.*LlamaForCausalLM"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "rope_type 'dynamic'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope_type 'longrope'"),
        ({"hidden_act": "relu2"}, "activation 'relu2'"),
        ({"sliding_window": 8}, "sliding_window = 8"),
        ({"residual_multiplier": 0.5}, "residual_multiplier = 0.5"),
        ({"num_experts": 8}, "num_experts = 8"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quant_method 'bitsandbytes'"),
    ],
)
def test_an_unsupported_feature_is_refused_by_name(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    save("llama", tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(UnsupportedModel, match=named) as caught:
        open_checkpoint(tmp_path)
    assert str(tmp_path) in str(caught.value) or "quant_method" in named


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": "64"}, "'hidden_size' is '64'"),
        ({"hidden_size": -1}, "'hidden_size' is -1"),
        ({"num_attention_heads": None}, "'num_attention_heads' is missing"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan"),
        ({"architectures": None}, "'architectures' is missing"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' is 'yes'"),
    ],
)
def test_a_field_that_is_wrong_is_named_with_the_file(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    save("llama", tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=named) as caught:
        open_checkpoint(tmp_path)
    assert "config.json" in str(caught.value)


def test_ends_of_sequence_are_those_of_both_configurations(tmp_path: Path) -> None:
    save("llama", tmp_path)
    assert open_checkpoint(tmp_path).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 2, 9]}')
    assert open_checkpoint(tmp_path).eos_token_ids == (2, 9)
    edit(tmp_path, eos_token_id=7)
    assert open_checkpoint(tmp_path).eos_token_ids == (2, 7, 9)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "</s>"}')
    with pytest.raises(CheckpointError, match=r"generation_config\.json.*eos_token_id.*'</s>'"):
        open_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    edit(tmp_path, eos_token_id=[4, 3])
    assert open_checkpoint(tmp_path).eos_token_ids == (3, 4)
    edit(tmp_path, eos_token_id=None)
    assert open_checkpoint(tmp_path).eos_token_ids == ()


def test_older_configurations_mean_the_same(tmp_path: Path) -> None:
    """`rope_theta` and `rope_scaling` before there was one dictionary."""
    model = save("llama-llama3-rope", tmp_path)
    scaling = dict(json.loads((tmp_path / "config.json").read_text())["rope_parameters"])
    theta = scaling.pop("rope_theta")
    edit(tmp_path, rope_parameters=None, rope_theta=theta, rope_scaling=scaling)
    ids = prompt(40)
    torch.testing.assert_close(logits_of(build(tmp_path), ids), reference_logits(model, ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize("broken", ["", "[]", "{"])
def test_a_config_that_is_no_object(broken: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(broken)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(tmp_path)


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        open_checkpoint(tmp_path)
