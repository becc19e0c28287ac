"""Tiny random models of every family, as transformers makes and saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

_BASE: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e3,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 5e3, "factor": 4.0, "original_max_position_embeddings": 64}
_GEMMA = {"num_hidden_layers": 6, "sliding_window": 8, "head_dim": 32, "query_pre_attn_scalar": 24}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-bias": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("llama", {"head_dim": 32, "num_key_value_heads": 1}),
    "llama-llama3-rope": ("llama", {"rope_parameters": _LLAMA3}),
    "llama-linear-rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama-yarn-rope": ("llama", {"rope_parameters": _YARN}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3-bias-tied": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "gemma3": ("gemma3_text", {**_GEMMA, "tie_word_embeddings": True}),
    "gemma3-cap": ("gemma3_text", {**_GEMMA, "final_logit_softcapping": 1.5}),
}


def make(variant: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """The transformers model, weights (norms and biases too) large enough for every path to show in the logits."""
    kind, changes = VARIANTS[variant]
    config = AutoConfig.for_model(kind, **{**_BASE, **changes, **more})
    torch.manual_seed(len(variant))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        spread = 0.2 if parameter.dim() == 1 else 0.15
        parameter.data.add_(torch.randn_like(parameter) * spread)
    return model.to(dtype)


def save(variant: str, directory: Path, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """Make and save a model; returns it."""
    model = make(variant, dtype, **more)
    model.save_pretrained(directory)
    return model


def prompt(length: int, vocab: int = 160) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, vocab, (length,), generator=generator).tolist()


@torch.no_grad()
def reference_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """float32 [len(ids), vocab] from a transformers model in float32."""
    return model(torch.tensor([ids])).logits[0]


def load_reference(directory: Path, **more: Any) -> Any:
    """A saved checkpoint in transformers, in float32 whatever it is stored in."""
    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", **more
    ).eval()
