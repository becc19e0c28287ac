"""Normalized configurations: the fields of each family, from both kinds of checkpoint."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.registry import GGUF_ARCHITECTURES, HF_ARCHITECTURES, from_gguf, from_hf
from headrace.models.rope import cos_sin_table
from headrace.settings import MOST_POSITIONS, Settings

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
META: dict[str, Any] = {
    "embedding_length": 64,
    "feed_forward_length": 96,
    "block_count": 6,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "context_length": 128,
    "vocab_size": 100,
}


def hf(architecture: str, **more: Any) -> Any:
    return from_hf({**BASE, **more, "architectures": [architecture]})[1]


def meta(arch: str, **more: Any) -> Any:
    values = {f"{arch}.{key}": value for key, value in {**META, **more}.items()}
    return from_gguf({**values, "general.architecture": arch})[1]


def test_llama_defaults() -> None:
    config = hf("LlamaForCausalLM")
    assert (config.head_dim, config.scale, config.activation, config.tied) == (16, 0.25, "silu", False)
    assert [layer.window for layer in config.layers] == [None] * 6
    assert config.ropes[0].theta == 10000.0
    switches = (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm, config.sandwich_norm)
    assert not any(switches)


def test_both_kinds_of_checkpoint_give_the_same_configuration() -> None:
    ours = hf("LlamaForCausalLM", rope_theta=5e5)
    assert meta("llama", **{"rope.freq_base": 5e5, "rope.dimension_count": 16}) == ours


def test_heads_that_are_not_shared() -> None:
    assert hf("LlamaForCausalLM", num_key_value_heads=None).num_kv_heads == 4


def test_mistral_windows_every_layer() -> None:
    assert {layer.window for layer in hf("MistralForCausalLM", sliding_window=32).layers} == {32}
    assert {layer.window for layer in hf("MistralForCausalLM", sliding_window=None).layers} == {None}


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ({"sliding_window": 9, "use_sliding_window": False}, [None] * 6),
        ({"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 4}, [None] * 4 + [9] * 2),
        ({"sliding_window": 9, "use_sliding_window": True}, [None] * 6),
        ({"sliding_window": 9, "layer_types": ["sliding_attention"] + ["full_attention"] * 5}, [9] + [None] * 5),
    ],
)
def test_qwen_windows(more: dict[str, Any], windows: list[int | None]) -> None:
    config = hf("Qwen2ForCausalLM", **more)
    assert [layer.window for layer in config.layers] == windows
    assert config.qkv_bias
    assert not config.output_bias


def test_qwen3_normalizes_heads_of_its_size() -> None:
    config = hf("Qwen3ForCausalLM")
    assert (config.head_dim, config.qk_norm, config.qkv_bias) == (128, True, False)


def test_gemma3_alternates_windows_and_bases() -> None:
    config = hf("Gemma3ForCausalLM", sliding_window=8, head_dim=16, rope_local_base_freq=1e4, rope_theta=1e6)
    assert [layer.window for layer in config.layers] == [8] * 5 + [None]
    assert [config.ropes[layer.rope].theta for layer in config.layers] == [1e4] * 5 + [1e6]
    assert (config.embedding_scale, config.scale, config.activation) == (8.0, 1 / 16, "gelu_tanh")
    assert config.tied
    assert config.sandwich_norm


def test_gemma3_scales_only_its_global_base() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    config = hf("Gemma3ForCausalLM", sliding_window=8, rope_scaling=scaling)
    assert [(rope.kind, rope.factor) for rope in config.ropes] == [("linear", 8.0), ("default", 1.0)]


def test_gemma3_from_metadata_has_defaults_for_missing_keys() -> None:
    config = meta("gemma3", **{"attention.sliding_window": 8, "attention.key_length": 32})
    assert [layer.window for layer in config.layers] == [8] * 5 + [None]
    assert [rope.theta for rope in config.ropes] == [1e6, 1e4]
    assert config.scale == 32**-0.5
    largest = meta("gemma3", **{"attention.sliding_window": 8, "attention.key_length": 32, "block_count": 62})
    assert largest.scale == 16**-0.5


def test_gguf_scaling() -> None:
    linear = meta("qwen2", **{"rope.scaling.type": "linear", "rope.scaling.factor": 2.0})
    assert (linear.ropes[0].kind, linear.ropes[0].factor) == ("linear", 2.0)
    yarn = meta(
        "qwen3",
        **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
    )
    assert (yarn.ropes[0].kind, yarn.ropes[0].original_max_position) == ("yarn", 32)
    with pytest.raises(UnsupportedModel, match="longrope"):
        meta("llama", **{"rope.scaling.type": "longrope"})


def test_counts_per_layer_must_agree() -> None:
    assert meta("llama", **{"attention.head_count_kv": [2] * 6}).num_kv_heads == 2
    with pytest.raises(UnsupportedModel, match="head_count_kv"):
        meta("llama", **{"attention.head_count_kv": [2, 1, 2, 2, 2, 2]})


def test_a_missing_vocabulary_size_is_counted() -> None:
    values = {f"llama.{key}": value for key, value in META.items() if key != "vocab_size"}
    tokens = {"tokenizer.ggml.tokens": ["a"] * 77, "general.architecture": "llama"}
    assert from_gguf({**values, **tokens})[1].vocab == 77


@pytest.mark.parametrize("name", ["BertModel", "FalconForCausalLM"])
def test_the_error_for_an_unknown_architecture_names_the_known_ones(name: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        hf(name)
    assert all(known in str(caught.value) for known in [name, *HF_ARCHITECTURES])
    with pytest.raises(UnsupportedModel) as caught:
        from_gguf({"general.architecture": name})
    assert all(known in str(caught.value) for known in [name, *GGUF_ARCHITECTURES])


def test_absurd_layer_counts_are_refused_before_any_work() -> None:
    with pytest.raises(CheckpointError, match="block_count"):
        meta("llama", block_count=1 << 30)
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        hf("LlamaForCausalLM", num_hidden_layers=1 << 30)


@pytest.mark.parametrize("value", [True, 0, -3, 1.5, "8", 1 << 40])
def test_settings_require_positive_integers(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"'p\.count'"):
        Settings({"p.count": value}, "p.").integer("count")


def test_settings_shorten_values_in_errors() -> None:
    with pytest.raises(CheckpointError) as caught:
        Settings({"x": "y" * 10_000}).number("x")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        ({"rope_type": "linear", "factor": 2.5}, 320),
        ({"rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": 32}, 128),
        ({"rope_type": "linear", "factor": 0.5}, 128),
        ({"rope_type": "linear", "factor": 1e29}, MOST_POSITIONS),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}, 400),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 128),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0}, 128),
    ],
)  # fmt: skip
def test_scaling_lengthens_the_context(scaling: dict[str, Any], positions: int) -> None:
    for architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM"):
        assert hf(architecture, rope_scaling=scaling).max_position == positions
    if scaling["rope_type"] != "llama3":
        keys = {"rope.scaling.type": scaling["rope_type"], "rope.scaling.factor": scaling["factor"]}
        if "original_max_position_embeddings" in scaling:
            keys["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
        assert {meta(arch, **keys).max_position for arch in ("llama", "qwen2")} == {positions}


def test_gemma3_states_the_context_after_scaling() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    assert hf("Gemma3ForCausalLM", sliding_window=8, rope_scaling=scaling).max_position == 128
    keys = {"attention.sliding_window": 8, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    assert meta("gemma3", **keys).max_position == 128


@pytest.mark.parametrize(("kind", "own"), [("yarn", 0.1 * math.log(4.0) + 1), ("linear", 1.0), ("none", 1.0)])
def test_a_gguf_attention_factor_multiplies_the_methods_own(kind: str, own: float) -> None:
    keys = {"rope.scaling.type": kind, "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
    plain = meta("llama", **keys).ropes[0]
    assert meta("llama", **keys, **{"rope.scaling.attn_factor": 1.0}).ropes[0] == plain
    more = meta("llama", **keys, **{"rope.scaling.attn_factor": 1.5}).ropes[0]
    torch.testing.assert_close(cos_sin_table(more, 9), cos_sin_table(plain, 9) * 1.5)
    assert cos_sin_table(plain, 1)[0, 0].item() == pytest.approx(own)
