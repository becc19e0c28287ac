"""Tiny random block drafters, saved in the layouts that their authors publish."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

HIDDEN, LAYERS, HEADS, KV_HEADS, DIM, INNER, VOCAB, RANK = 32, 2, 4, 2, 16, 96, 260, 8
FEATURES, TARGET_LAYERS = [0, 1], 2
"""Layers of the target whose output is read, and the number of all; they fit the tiny model of these tests."""
MASK = 5

_LAYERS: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "num_hidden_layers": LAYERS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000.0,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "attention_bias": False,
    "layer_types": ["full_attention"] * LAYERS,
}
_OWN = {"mask_token_id": MASK, "target_layer_ids": FEATURES}
_MARKOV = {"markov_rank": RANK, "enable_confidence_head": True, "confidence_head_with_markov": True}
_CONVOLUTION = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": RANK, "selector_top_k": 16}
_SPECULATORS = {
    "mask_token_id": MASK,
    "aux_hidden_state_layer_ids": [one + 1 for one in FEATURES],
    "transformer_layer_config": _LAYERS,
    "speculators_config": {"verifier": {"name_or_path": "a/target", "architectures": ["LlamaForCausalLM"]}},
}


def _zlab(name: str, block_on_top: bool = True, **own: Any) -> dict[str, Any]:
    block = {"block_size": 5}
    return {
        **_LAYERS,
        "architectures": [name],
        "num_target_layers": TARGET_LAYERS,
        "dflash_config": {**_OWN, **own, **({} if block_on_top else block)},
        **(block if block_on_top else {}),
    }


def _deepspec(kind: str) -> dict[str, Any]:
    head = {**_MARKOV, "markov_head_type": kind}
    return {
        **_LAYERS,
        "architectures": ["Qwen3DSparkModel"],
        "block_size": 4,
        "num_target_layers": TARGET_LAYERS,
        **_OWN,
        **head,
    }


_SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7}
CONFIGS: dict[str, dict[str, Any]] = {
    "zlab": _zlab("DFlashDraftModel"),
    "zlab-windows": {**_zlab("DFlashDraftModel"), **_SLIDING},
    "zlab-mask-vector": {**_zlab("DFlashDraftModel"), "dflash_config": {"target_layer_ids": FEATURES}},
    "dflash2": {**_zlab("DFlash2DraftModel", False, **_CONVOLUTION, output_multiplier=0.5), **_SLIDING},
    "dflash2-soft-cap": _zlab(
        "DFlash2DraftModel", False, **_CONVOLUTION, input_embedding_scale=2.0, final_logit_softcapping=3.0
    ),
    "speculators": {
        **_SPECULATORS,
        "speculators_model_type": "dflash",
        "block_size": 4,
        "draft_vocab_size": 90,
        "sample_from_anchor": False,
    },
    "speculators-windows": {
        **_SPECULATORS,
        "speculators_model_type": "dflash",
        "block_size": 4,
        "draft_vocab_size": 90,
        "sliding_window_non_causal": True,
        "transformer_layer_config": {**_LAYERS, **_SLIDING},
    },
    "dspark-speculators": {
        **_SPECULATORS,
        **_MARKOV,
        "speculators_model_type": "dspark",
        "block_size": 4,
        "draft_vocab_size": 90,
        "sample_from_anchor": False,
    },
    "dspark": _deepspec("vanilla"),
    "dspark-gated": _deepspec("gated"),
    "dspark-rnn": _deepspec("rnn"),
    "dspark-specforge": {
        **_LAYERS,
        "architectures": ["DSparkDraftModel"],
        "block_size": 4,
        "dflash_config": {**_OWN, **_MARKOV, "projector_type": "dspark", "attention_mode": "gqa"},
    },
}


def tensors(layout: str) -> dict[str, torch.Tensor]:
    """Random tensors under the names of a layout, large enough for every path to show in the drafts."""
    config, generator = CONFIGS[layout], torch.Generator().manual_seed(len(layout))
    own = {**config, **config.get("dflash_config", {})}

    def normal(*shape: int, spread: float = 0.15) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * spread

    def norm(size: int = HIDDEN) -> torch.Tensor:
        return 1 + normal(size, spread=0.2)

    found = {"fc.weight": normal(HIDDEN, len(FEATURES) * HIDDEN), "hidden_norm.weight": norm(), "norm.weight": norm()}
    for index in range(LAYERS):
        name = f"layers.{index}."
        found |= {
            f"{name}input_layernorm.weight": norm(),
            f"{name}post_attention_layernorm.weight": norm(),
            f"{name}self_attn.q_proj.weight": normal(HEADS * DIM, HIDDEN),
            f"{name}self_attn.k_proj.weight": normal(KV_HEADS * DIM, HIDDEN),
            f"{name}self_attn.v_proj.weight": normal(KV_HEADS * DIM, HIDDEN),
            f"{name}self_attn.o_proj.weight": normal(HIDDEN, HEADS * DIM),
            f"{name}self_attn.q_norm.weight": norm(DIM),
            f"{name}self_attn.k_norm.weight": norm(DIM),
            f"{name}mlp.gate_proj.weight": normal(INNER, HIDDEN),
            f"{name}mlp.up_proj.weight": normal(INNER, HIDDEN),
            f"{name}mlp.down_proj.weight": normal(HIDDEN, INNER),
        }
        for which in ("attention", "mlp") if "conv_kernel_size" in own else ():
            found[f"{name}{which}_conv.base_kernel"] = normal(2, 2, HIDDEN, spread=0.5)
            found[f"{name}{which}_conv.kernel_projection.weight"] = normal(2 * 2 * HIDDEN // 16, HIDDEN, spread=0.05)
    if "selector_rank" in own:
        found["candidate_selector.predecessor_codebook"] = normal(VOCAB, RANK, spread=1)
        found["candidate_selector.successor_codebook"] = normal(VOCAB, RANK, spread=1)
        found["candidate_selector.hidden_projection.weight"] = normal(RANK, HIDDEN)
    small = own.get("draft_vocab_size", VOCAB)
    if "markov_rank" in own:
        found |= _markov(own.get("markov_head_type", "vanilla"), small, normal)
    if small != VOCAB:
        kept = torch.randperm(VOCAB, generator=generator)[:small].sort().values
        found["d2t"] = kept - torch.arange(small)
        found["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, kept, True)
        found["lm_head.weight"] = normal(small, HIDDEN, spread=0.3)
        found["embed_tokens.weight"] = normal(VOCAB, HIDDEN)
    if "mask_token_id" not in own:
        found["mask_embedding"] = normal(HIDDEN)
    return found


def _markov(kind: str, small: int, normal: Any) -> dict[str, torch.Tensor]:
    found = {
        "markov_head.markov_w1.weight": normal(VOCAB, RANK, spread=1),
        "markov_head.markov_w2.weight": normal(small, RANK, spread=1),
        "confidence_head.proj.weight": normal(1, HIDDEN + RANK),
        "confidence_head.proj.bias": normal(1),
    }
    if kind == "gated":
        found |= {
            "markov_head.gate_proj.weight": normal(RANK, HIDDEN + RANK),
            "markov_head.gate_proj.bias": normal(RANK),
        }
    if kind == "rnn":
        found["markov_head.joint_proj.weight"] = normal(3 * RANK, 2 * RANK + HIDDEN)
        found["markov_head.joint_proj.bias"] = normal(3 * RANK)
    return found


def save(layout: str, directory: Path, changes: dict[str, Any] | None = None, **more: torch.Tensor | None) -> Path:
    """Save a drafter: `changes` of its settings, and tensors that are added, replaced or left out (None)."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in {**CONFIGS[layout], **(changes or {})}.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(config))
    kept = {name: tensor for name, tensor in {**tensors(layout), **more}.items() if tensor is not None}
    save_file({name: tensor.contiguous() for name, tensor in kept.items()}, directory / "model.safetensors")
    return directory


def save_chain(directory: Path, model: Path) -> tuple[Path, Path]:
    """A target whose next token depends on the last one alone, made of another model, and a drafter whose Markov head
    holds its table."""
    target, weights = directory / "target", load_file(model / "model.safetensors")
    shutil.copytree(model, target)
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = torch.zeros_like(weights[name])
    save_file(weights, target / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    read = embedding * torch.rsqrt(embedding.pow(2).mean(1, keepdim=True) + 1e-6) * weights["model.norm.weight"]
    own: dict[str, torch.Tensor] = {
        "norm.weight": torch.zeros(HIDDEN),
        "markov_head.markov_w1.weight": read,
        "markov_head.markov_w2.weight": weights["lm_head.weight"],
        "confidence_head.proj.weight": torch.zeros(1, 2 * HIDDEN),
        "confidence_head.proj.bias": torch.full((1,), 20.0),
    }
    return target, save("dspark", directory / "dspark", {"markov_rank": HIDDEN}, **own)
