"""Llama and models of the same structure: Llama 1 to 3, SmolLM, Mistral (with its sliding window)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.models import gguf, hf
from headrace.models.config import DecoderConfig
from headrace.models.family import GGUF_NAMES, HF_NAMES, Family
from headrace.models.moe_settings import GGUF_KEYS, gguf_moe, with_experts
from headrace.settings import Settings

__all__ = ["LLAMA", "MISTRAL"]


def _llama(config: Mapping[str, Any]) -> DecoderConfig:
    settings = Settings(config)
    settings.refuse("llama", {"sliding_window": None, "layer_types": None})
    bias = settings.flag("attention_bias", False)
    windows: list[int | None] = [None] * settings.layers("num_hidden_layers")
    return hf.simple_decoder(
        config, "llama", windows, qkv_bias=bias, output_bias=bias, mlp_bias=settings.flag("mlp_bias", False)
    )


def _mistral(config: Mapping[str, Any]) -> DecoderConfig:
    settings = Settings(config)
    count = settings.layers("num_hidden_layers")
    kind = "full_attention" if settings.get("sliding_window") is None else "sliding_attention"
    return hf.simple_decoder(config, "mistral", hf.layer_windows(config, "mistral", [kind] * count))


def _gguf(metadata: Mapping[str, Any]) -> DecoderConfig:
    settings = gguf.settings_of(metadata, "llama", GGUF_KEYS)
    window = settings.optional_integer("attention.sliding_window")
    windows = [window] * settings.layers("block_count")
    rope = gguf.read_rope(settings, "llama")
    fields = gguf.base_fields(settings, metadata, "llama")
    config = DecoderConfig(**fields, layers=hf.uniform_layers(windows), ropes=(rope,))
    return (
        with_experts(config, gguf_moe(settings), [True] * len(windows)) if settings.count("expert_count", 0) else config
    )


LLAMA = Family("llama", _llama, HF_NAMES, _gguf, GGUF_NAMES, gguf_interleaved=True)
MISTRAL = Family("mistral", _mistral, HF_NAMES, _gguf, GGUF_NAMES, gguf_interleaved=True)
