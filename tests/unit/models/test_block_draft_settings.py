"""Settings of block drafters: every published layout, and errors that name the key."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import CheckpointError, ConfigError, UnsupportedModel
from headrace.models.block_draft_config import BlockConvolution, Candidates, Markov, check_block_draft
from headrace.models.block_draft_settings import is_block_draft, read_block_draft
from headrace.models.config import DecoderConfig, LayerConfig, Rope

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 5,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "layer_types": ["full_attention"] * 5,
}
ZLAB: dict[str, Any] = {
    **QWEN3,
    "architectures": ["DFlashDraftModel"],
    "block_size": 16,
    "num_target_layers": 36,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}
DFLASH2: dict[str, Any] = {
    **QWEN3,
    "architectures": ["DFlash2DraftModel"],
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": 151669,
        "target_layer_ids": [5, 19, 33],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
        "output_multiplier": 0.25,
        "final_logit_softcapping": 30.0,
        "input_embedding_scale": 2.0,
    },
}
SPECULATORS: dict[str, Any] = {
    "speculators_model_type": "dflash",
    "architectures": ["DFlashSpeculator"],
    "block_size": 8,
    "draft_vocab_size": 32000,
    "mask_token_id": 151669,
    "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34],
    "sample_from_anchor": False,
    "transformer_layer_config": QWEN3,
    "speculators_config": {"verifier": {"name_or_path": "Qwen/Qwen3-8B", "architectures": ["Qwen3ForCausalLM"]}},
}
DSPARK: dict[str, Any] = {
    **QWEN3,
    "architectures": ["Qwen3DSparkModel"],
    "block_size": 7,
    "target_layer_ids": [1, 9, 17, 25, 33],
    "mask_token_id": 151669,
    "markov_rank": 256,
    "markov_head_type": "gated",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "num_target_layers": 36,
}
NESTED: dict[str, Any] = {
    **QWEN3,
    "architectures": ["DSparkDraftModel"],
    "block_size": 7,
    "dflash_config": {
        "projector_type": "dspark",
        "attention_mode": "gqa",
        "target_layer_ids": [1, 9, 17, 25, 33],
        "dspark_noise_token_id": 7,
        "dspark_markov_rank": 64,
        "dspark_draft_topk": 20,
        "enable_confidence_head": False,
    },
}
TARGET = DecoderConfig("qwen3", 4096, 32, 8, 128, 12288, 151936, (LayerConfig(),) * 36, (Rope(1e6, 128),), 40960, 1e-6)


def changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """With other settings; those of `dflash_config` begin with `own_`, None removes one."""
    inner = dict(config.get("dflash_config", {}))
    outer = dict(config)
    for key, value in changes.items():
        place, name = (inner, key[4:]) if key.startswith("own_") else (outer, key)
        place[name] = value
        if value is None:
            del place[name]
    return {**outer, "dflash_config": inner} if inner else outer


def test_zlab() -> None:
    found = read_block_draft(ZLAB, 36)
    assert (found.method, found.rows, found.drafts, found.anchored) == ("dflash", 16, 15, False)
    assert found.features == (2, 10, 18, 26, 34)
    assert (found.mask_token, found.causal, found.draft_vocab) == (151669, (False,) * 5, None)
    assert found.markov is None
    assert found.candidates is None
    assert found.convolution is None
    assert not found.confidence
    assert found.choices == 128
    check_block_draft(found, TARGET, "here")


def test_zlab_layers_that_are_not_named() -> None:
    config = changed(ZLAB, own_target_layer_ids=None)
    assert read_block_draft(config, 36).features == (2, 10, 18, 26, 34)
    single = changed(config, num_hidden_layers=1, layer_types=["full_attention"])
    assert read_block_draft(single, 36).features == (19,)


def test_dflash2() -> None:
    found = read_block_draft(DFLASH2, 64)
    assert (found.method, found.rows, found.drafts) == ("dflash", 8, 7)
    assert found.convolution == BlockConvolution(2, 16)
    assert found.candidates == Candidates(256, 16)
    assert (found.logit_scale, found.decoder.logits_soft_cap, found.decoder.embedding_scale) == (0.25, 30.0, 2.0)
    assert (found.causal, found.windows(), found.choices) == ((True,) * 5, (2048,) * 5, 16)


@pytest.mark.parametrize(
    ("changes", "causal"),
    [({"is_causal": False}, False), ({"own_causal": False}, False), ({"is_causal": True, "own_causal": False}, True)],
)
def test_stated_causality_comes_before_the_layers_types(changes: dict[str, Any], causal: bool) -> None:
    found = read_block_draft(changed(DFLASH2, **changes), 64)
    assert found.causal == (causal,) * 5
    assert found.windows() == ((2048,) if causal else (2056,)) * 5


def test_speculators() -> None:
    found = read_block_draft(SPECULATORS, 36)
    assert (found.method, found.rows, found.drafts, found.draft_vocab) == ("dflash", 8, 7, 32000)
    assert found.features == (2, 10, 18, 26, 34)
    assert found.target_name == "Qwen/Qwen3-8B"
    sliding = {**QWEN3, "layer_types": ["sliding_attention", *["full_attention"] * 4], "sliding_window": 100}
    windowed = {**SPECULATORS, "transformer_layer_config": sliding}
    assert read_block_draft(windowed, 36).causal == (False,) * 5
    causal = read_block_draft({**windowed, "sliding_window_non_causal": False}, 36)
    assert causal.causal == (True, False, False, False, False)


def test_dspark() -> None:
    found = read_block_draft(DSPARK, 36)
    assert (found.method, found.rows, found.drafts, found.anchored) == ("dspark", 7, 7, True)
    assert found.markov == Markov("gated", 256)
    assert found.confidence
    assert found.confidence_markov
    other = read_block_draft({**SPECULATORS, **{"speculators_model_type": "dspark", "markov_rank": 32}}, 36)
    assert (other.method, other.drafts, other.anchored) == ("dspark", 7, False)
    assert other.markov == Markov("vanilla", 32)


def test_dspark_nested_and_with_prefixes() -> None:
    found = read_block_draft(NESTED, 36)
    assert (found.method, found.mask_token, found.confidence) == ("dspark", 7, False)
    assert found.markov == Markov("vanilla", 64, 20)
    assert found.choices == 20


def test_what_is_a_block_drafter() -> None:
    assert all(is_block_draft(config) for config in (ZLAB, DFLASH2, SPECULATORS, DSPARK, NESTED))
    assert not is_block_draft({**QWEN3, "architectures": ["Qwen3ForCausalLM"]})
    assert not is_block_draft({**SPECULATORS, "speculators_model_type": "eagle3"})
    with pytest.raises(UnsupportedModel, match="Qwen3ForCausalLM"):
        read_block_draft({**QWEN3, "architectures": ["Qwen3ForCausalLM"]}, 36)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (changed(ZLAB, own_target_layer_ids=[1, 36]), "target_layer_ids"),
        (changed(ZLAB, own_target_layer_ids=[1, True]), "target_layer_ids"),
        (changed(ZLAB, own_target_layer_ids=[]), "target_layer_ids"),
        (changed(ZLAB, block_size=1), "block_size"),
        (changed(ZLAB, own_mask_token_id=-1), "mask_token_id"),
        (changed(ZLAB, hidden_size=None), "hidden_size"),
        (changed(ZLAB, layer_types=["full_attention"]), "layer_types"),
        (changed(SPECULATORS, draft_vocab_size=200000), "draft_vocab_size"),
        (changed(SPECULATORS, aux_hidden_state_layer_ids=[37]), "aux_hidden_state_layer_ids"),
        (changed(DFLASH2, own_conv_group_size=17), "conv_group_size"),
        (changed(DFLASH2, own_selector_top_k=None), "selector_top_k"),
        (changed(DSPARK, markov_head_type="fir"), "markov_head_type"),
    ],
)
def test_wrong_settings_are_named(config: dict[str, Any], names: str) -> None:
    with pytest.raises(CheckpointError, match=names):
        read_block_draft(config, 36)


@pytest.mark.parametrize("key", ["attention_sink_bias", "shift_label", "dspark_backbone_conv_enabled"])
def test_arithmetic_that_is_not_served_is_refused(key: str) -> None:
    with pytest.raises(UnsupportedModel, match=key):
        read_block_draft(changed(ZLAB, **{f"own_{key}": True}), 36)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"vocab_size": 1000}, "vocab_size is 1000"),
        ({"hidden_size": 2048}, "target_hidden_size is 2048"),
        ({"num_target_layers": 28}, "num_target_layers is 28"),
    ],
)
def test_a_drafter_of_another_target_is_refused(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=f"dflash:here: {names}"):
        check_block_draft(read_block_draft(changed(ZLAB, **changes), 36), TARGET, "here")
