"""Qwen2 and Qwen3 with a mixture of experts in all or some layers (arXiv:2407.10671, 2505.09388)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.models import gguf, hf
from headrace.models.config import DecoderConfig
from headrace.models.family import GGUF_NAMES, HF_NAMES, Family
from headrace.models.moe_settings import GGUF_KEYS, HF_KEYS, gguf_moe, hf_moe, with_experts
from headrace.models.qwen import windows
from headrace.settings import Settings

__all__ = ["QWEN2_MOE", "QWEN3_MOE"]

_SHARED_WIDTH = "expert_shared_feed_forward_length"


def _qwen3_moe(config: Mapping[str, Any]) -> DecoderConfig:
    settings = Settings(config)
    bias = settings.flag("attention_bias", False)
    layer_windows = windows(config, "qwen3_moe")
    dense = hf.simple_decoder(
        config, "qwen3_moe", layer_windows, HF_KEYS, qk_norm=True, qkv_bias=bias, output_bias=bias
    )
    moe = hf_moe(settings, settings.integer("moe_intermediate_size"), settings.flag("norm_topk_prob", False))
    return with_experts(dense, moe, _sparse(settings, len(layer_windows)))


def _sparse(settings: Settings, count: int) -> list[bool]:
    """Whether each layer has experts: every `decoder_sparse_step`-th layer, except those in `mlp_only_layers`."""
    step, plain = settings.integer("decoder_sparse_step", 1), settings.items("mlp_only_layers")
    return [index not in plain and (index + 1) % step == 0 for index in range(count)]


def _qwen2_moe(config: Mapping[str, Any]) -> DecoderConfig:
    """The shares are those of the softmax, and a shared expert has its own gate."""
    settings = Settings(config)
    layers = _every_other(settings)
    bias = settings.flag("qkv_bias", True)
    dense = hf.simple_decoder(
        config, "qwen2_moe", hf.layer_windows(config, "qwen2_moe", layers), HF_KEYS, qkv_bias=bias
    )
    moe = hf_moe(settings, settings.integer("moe_intermediate_size"), settings.flag("norm_topk_prob", False))
    shared = settings.integer("shared_expert_intermediate_size")
    return with_experts(dense, replace(moe, shared=shared, shared_gated=True), _sparse(settings, len(layers)))


def _every_other(settings: Settings) -> list[str]:
    """The default layer types: with `use_sliding_window`, every other of the first `max_window_layers` has a window."""
    count, sliding = settings.layers("num_hidden_layers"), settings.flag("use_sliding_window", False)
    windowed = range(0, min(count, settings.count("max_window_layers", 28)), 2) if sliding else ()
    return ["sliding_attention" if index in windowed else "full_attention" for index in range(count)]


def _qwen2_moe_gguf(metadata: Mapping[str, Any]) -> DecoderConfig:
    settings = gguf.settings_of(metadata, "qwen2moe", GGUF_KEYS | {_SHARED_WIDTH})
    fields = gguf.base_fields(settings, metadata, "qwen2moe")
    layers = hf.uniform_layers([None] * settings.layers("block_count"))
    dense = DecoderConfig(**fields, qkv_bias=True, layers=layers, ropes=(gguf.read_rope(settings, "qwen2moe"),))
    moe = gguf_moe(settings)
    routing = replace(moe.routing, renormalize=False)
    shared = settings.integer(_SHARED_WIDTH, fields["intermediate"])
    return with_experts(dense, replace(moe, routing=routing, shared=shared, shared_gated=True), [True] * len(layers))


def _gguf(metadata: Mapping[str, Any]) -> DecoderConfig:
    settings = gguf.settings_of(metadata, "qwen3moe", GGUF_KEYS)
    count = settings.layers("block_count")
    fields = gguf.base_fields(settings, metadata, "qwen3moe")
    layers = hf.uniform_layers([None] * count)
    dense = DecoderConfig(**fields, qk_norm=True, layers=layers, ropes=(gguf.read_rope(settings, "qwen3moe"),))
    return with_experts(dense, gguf_moe(settings), [True] * count)


QWEN2_MOE = Family("qwen2_moe", _qwen2_moe, HF_NAMES, _qwen2_moe_gguf, GGUF_NAMES)
QWEN3_MOE = Family("qwen3_moe", _qwen3_moe, HF_NAMES, _gguf, GGUF_NAMES)
