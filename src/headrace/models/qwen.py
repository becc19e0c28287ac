"""Qwen2 (biases on Q, K, V) and Qwen3 (norms on every query and key head), dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.models import gguf, hf
from headrace.models.config import DecoderConfig
from headrace.models.family import GGUF_NAMES, HF_NAMES, Family
from headrace.settings import Settings

__all__ = ["QWEN2", "QWEN3", "windows"]


def windows(config: Mapping[str, Any], family: str) -> list[int | None]:
    """The window of each layer: from layer `max_window_layers` on, if `use_sliding_window` is set."""
    settings = Settings(config)
    count = settings.layers("num_hidden_layers")
    sliding = settings.flag("use_sliding_window", False) and settings.get("sliding_window") is not None
    start = settings.count("max_window_layers", 28) if sliding else count
    types = ["sliding_attention" if index >= start else "full_attention" for index in range(count)]
    return hf.layer_windows(config, family, types)


def _qwen2(config: Mapping[str, Any]) -> DecoderConfig:
    return hf.simple_decoder(config, "qwen2", windows(config, "qwen2"), qkv_bias=True)


def _qwen3(config: Mapping[str, Any]) -> DecoderConfig:
    bias = Settings(config).flag("attention_bias", False)
    fields = {"head_dim": Settings(config).integer("head_dim", 128)}
    config = {**config, **fields}
    return hf.simple_decoder(config, "qwen3", windows(config, "qwen3"), qk_norm=True, qkv_bias=bias, output_bias=bias)


def _qwen2_gguf(metadata: Mapping[str, Any]) -> DecoderConfig:
    return _gguf(metadata, "qwen2", qkv_bias=True)


def _qwen3_gguf(metadata: Mapping[str, Any]) -> DecoderConfig:
    return _gguf(metadata, "qwen3", qk_norm=True)


def _gguf(metadata: Mapping[str, Any], arch: str, **more: Any) -> DecoderConfig:
    settings = gguf.settings_of(metadata, arch)
    rope = gguf.read_rope(settings, arch)
    layers = hf.uniform_layers([None] * settings.layers("block_count"))
    return DecoderConfig(**gguf.base_fields(settings, metadata, arch), **more, layers=layers, ropes=(rope,))


QWEN2 = Family("qwen2", _qwen2, HF_NAMES, _qwen2_gguf, GGUF_NAMES)
QWEN3 = Family("qwen3", _qwen3, HF_NAMES, _qwen3_gguf, GGUF_NAMES)
