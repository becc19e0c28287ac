"""The directories of trained heads: exact names, shapes and settings of the published layouts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_cases import IDS, MASK, METHODS, make

from headrace.training.head_files import round_weights, write_head

H, F, Q, K, D, V = 16, 24, 32, 16, 8, 40
_MLP = {"mlp.gate_proj": (F, H), "mlp.up_proj": (F, H), "mlp.down_proj": (H, F)}
_NORMS = {"input_layernorm": (H,), "post_attention_layernorm": (H,)}


def attention(width: int) -> dict[str, tuple[int, ...]]:
    sizes = {"q_proj": (Q, width), "k_proj": (K, width), "v_proj": (K, width), "o_proj": (H, Q)}
    return {f"self_attn.{name}": size for name, size in sizes.items()}


def weights(prefix: str, *parts: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}{name}.weight": size for part in parts for name, size in part.items()}


EAGLE3 = {
    **weights("midlayer.", attention(2 * H), _MLP, _NORMS, {"hidden_norm": (H,)}),
    **weights("", {"fc": (H, 3 * H), "norm": (H,), "lm_head": (20, H)}),
    "d2t": (20,),
    "t2d": (V,),
}
MTP = weights(
    "model.layers.6.",
    attention(H),
    _MLP,
    _NORMS,
    {"enorm": (H,), "hnorm": (H,), "eh_proj": (H, 2 * H), "shared_head.norm": (H,)},
)
_QK = {"self_attn.q_norm": (D,), "self_attn.k_norm": (D,)}
DFLASH = {
    **weights("layers.0.", attention(H), _MLP, _NORMS, _QK),
    **weights("layers.1.", attention(H), _MLP, _NORMS, _QK),
    **weights("", {"fc": (H, 5 * H), "hidden_norm": (H,), "norm": (H,)}),
}
_VOCABULARY = {"lm_head.weight": (20, H), "d2t": (20,), "t2d": (V,)}
LAYOUTS = {"eagle3": EAGLE3, "mtp": MTP, "dflash": {**DFLASH, **_VOCABULARY}, "dflash-all": DFLASH}


@pytest.mark.parametrize("method", METHODS)
def test_names_and_shapes(method: str, tmp_path: Path) -> None:
    head = make(method, spread=0.3)
    round_weights(head)
    write_head(head, tmp_path, {"steps": 3})
    found = load_file(tmp_path / "model.safetensors")
    if method.startswith("dflash"):
        # Layers 1, 1, 2, 2 and 3 of 6: each counts once.
        found["fc.weight"] = torch.cat([found["fc.weight"], torch.zeros(H, (5 - 3) * H, dtype=torch.bfloat16)], 1)
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == LAYOUTS[method]
    kinds = {name: tensor.dtype for name, tensor in found.items()}
    assert kinds.pop("d2t", torch.int64) == torch.int64
    assert kinds.pop("t2d", torch.bool) == torch.bool
    assert set(kinds.values()) == {torch.bfloat16}
    for name, parameter in head.named_parameters():
        stored = f"model.layers.6.{name.removeprefix('block.')}" if method == "mtp" else name
        if not method.startswith("dflash") or name != "fc.weight":
            assert torch.equal(found[stored].float(), parameter), name
    assert json.loads((tmp_path / "training.json").read_text()) == {"steps": 3}
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o444 == 0o444


@pytest.mark.parametrize("method", ["eagle3", "dflash"])
def test_the_draft_vocabulary_is_stored_as_offsets(method: str, tmp_path: Path) -> None:
    write_head(make(method), tmp_path, {})
    found = load_file(tmp_path / "model.safetensors")
    assert (torch.arange(20) + found["d2t"]).tolist() == IDS.tolist()
    assert found["t2d"].nonzero()[:, 0].tolist() == IDS.tolist()


_COMMON = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "dtype": "bfloat16",
}
_BLOCK_LAYERS = {
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "layer_types": ["full_attention"] * 2,
    "attention_bias": False,
}
CONFIGS = {
    "eagle3": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": 20,
        "tie_word_embeddings": False,
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [2, 3, 3],
            "norm_before_fc": False,
        },
    },
    "mtp": {
        "architectures": ["LlamaForCausalLMNextN"],
        "model_type": "llama",
        "num_hidden_layers": 6,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": True,
    },
    "dflash-all": {
        "architectures": ["DFlashDraftModel"],
        **_BLOCK_LAYERS,
        "block_size": 4,
        "num_target_layers": 6,
        "tie_word_embeddings": True,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 2, 3]},
    },
}
SPECULATORS = {
    "architectures": ["DFlashSpeculator"],
    "speculators_model_type": "dflash",
    "transformer_layer_config": {name: value for name, value in _COMMON.items() if name != "dtype"} | _BLOCK_LAYERS,
    "block_size": 4,
    "draft_vocab_size": 20,
    "target_hidden_size": 16,
    "mask_token_id": MASK,
    "aux_hidden_state_layer_ids": [2, 3, 4],
    "sample_from_anchor": False,
    "sliding_window_non_causal": True,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


@pytest.mark.parametrize("method", METHODS)
def test_settings(method: str, tmp_path: Path) -> None:
    write_head(make(method), tmp_path, {})
    wanted = SPECULATORS if method == "dflash" else _COMMON | CONFIGS[method]
    assert json.loads((tmp_path / "config.json").read_text()) == wanted


def test_the_layers_whose_states_a_head_of_a_model_of_30_layers_reads() -> None:
    """EAGLE-3 counts the layer that the stream enters, DFlash the layer that it leaves."""
    from dataclasses import replace

    import training_cases

    shape = replace(training_cases.SHAPE, layers=30)
    original, training_cases.SHAPE = training_cases.SHAPE, shape
    try:
        assert make("eagle3").points == (2, 15, 27)
        assert make("dflash").layer_ids == (1, 7, 14, 20, 27)
        assert make("dflash").points == (2, 8, 15, 21, 28)
        assert make("mtp").points == ()
    finally:
        training_cases.SHAPE = original
