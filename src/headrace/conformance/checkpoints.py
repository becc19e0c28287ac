"""Tiny checkpoints with random weights, as files, which the last tier loads with the engine's loader."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file

__all__ = ["KINDS", "VOCAB", "CheckpointKind", "write"]

VOCAB = 96
_HIDDEN, _WIDE, _LAYERS, _EXPERTS = 64, 96, 2, 4
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class CheckpointKind:
    """One kind of checkpoint."""

    architecture: str
    settings: Mapping[str, Any]
    biases: bool = False
    experts: bool = False
    quantize: bool = False
    """Its matrices are quantized on load, in a format that the device supports."""


KINDS: Mapping[str, CheckpointKind] = MappingProxyType(
    {
        "plain": CheckpointKind("LlamaForCausalLM", {"model_type": "llama"}),
        "window": CheckpointKind("MistralForCausalLM", {"model_type": "mistral", "sliding_window": 5}),
        "biases": CheckpointKind("Qwen2ForCausalLM", {"model_type": "qwen2"}, biases=True),
        "experts": CheckpointKind(
            "MixtralForCausalLM",
            {"model_type": "mixtral", "num_local_experts": _EXPERTS, "num_experts_per_tok": 2},
            experts=True,
        ),
        "quantised": CheckpointKind("LlamaForCausalLM", {"model_type": "llama"}, quantize=True),
    }
)


def write(kind: CheckpointKind, folder: Path, heads: int, kv_heads: int, head_dim: int) -> Path:
    """Write config.json and model.safetensors, the same in every run. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "architectures": [kind.architecture],
        "hidden_size": _HIDDEN,
        "intermediate_size": _WIDE,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "num_hidden_layers": _LAYERS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        **kind.settings,
    }
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    save_file(_tensors(kind, heads * head_dim, kv_heads * head_dim), folder / "model.safetensors", {"format": "pt"})
    return folder


def _tensors(kind: CheckpointKind, queries: int, keys: int) -> Tensors:
    generator = torch.Generator().manual_seed(17)

    def matrix(rows: int, columns: int, spread: float = 1.5) -> torch.Tensor:
        values: torch.Tensor = torch.randn(rows, columns, generator=generator) * (spread / columns**0.5)
        return values

    def vector(size: int, middle: float) -> torch.Tensor:
        return middle + 0.3 * torch.randn(size, generator=generator)

    found: Tensors = {"model.embed_tokens.weight": matrix(VOCAB, _HIDDEN, 8.0)}
    for layer in range(_LAYERS):
        here = f"model.layers.{layer}."
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            found[f"{here}self_attn.{name}_proj.weight"] = matrix(rows, _HIDDEN)
            if kind.biases:
                found[f"{here}self_attn.{name}_proj.bias"] = vector(rows, 0.0)
        found[f"{here}self_attn.o_proj.weight"] = matrix(_HIDDEN, queries)
        found |= {
            f"{here}{name}.weight": vector(_HIDDEN, 1.0) for name in ("input_layernorm", "post_attention_layernorm")
        }
        if kind.experts:
            found[f"{here}block_sparse_moe.gate.weight"] = matrix(_EXPERTS, _HIDDEN)
            mlps = [(f"{here}block_sparse_moe.experts.{e}.", ("w1", "w3", "w2")) for e in range(_EXPERTS)]
        else:
            mlps = [(f"{here}mlp.", ("gate_proj", "up_proj", "down_proj"))]
        for prefix, (gate, up, down) in mlps:
            found[f"{prefix}{gate}.weight"] = matrix(_WIDE, _HIDDEN)
            found[f"{prefix}{up}.weight"] = matrix(_WIDE, _HIDDEN)
            found[f"{prefix}{down}.weight"] = matrix(_HIDDEN, _WIDE)
    found["model.norm.weight"] = vector(_HIDDEN, 1.0)
    # Large logits, so that rounding doesn't change which token is the best.
    return found | {"lm_head.weight": matrix(VOCAB, _HIDDEN, 6.0)}
