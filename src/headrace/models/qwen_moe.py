"""Qwen3 with a mixture of experts in every layer or in some (arXiv:2505.09388)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import CheckpointError
from headrace.models import gguf, hf
from headrace.models.config import DecoderConfig
from headrace.models.family import GGUF_NAMES, HF_NAMES, Family
from headrace.models.moe_settings import GGUF_KEYS, HF_KEYS, gguf_moe, hf_moe, with_experts
from headrace.models.qwen import windows
from headrace.models.settings import Settings

__all__ = ["QWEN3_MOE"]


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
    """Every `decoder_sparse_step`-th layer, without those of `mlp_only_layers`."""
    step, plain = settings.integer("decoder_sparse_step", 1), settings.get("mlp_only_layers") or []
    if not isinstance(plain, list):
        raise CheckpointError(f"field 'mlp_only_layers' is {str(plain)[:60]!r}: expected a list of layers")
    return [index not in plain and (index + 1) % step == 0 for index in range(count)]


def _gguf(metadata: Mapping[str, Any]) -> DecoderConfig:
    settings = gguf.settings_of(metadata, "qwen3moe", GGUF_KEYS)
    count = settings.layers("block_count")
    fields = gguf.base_fields(settings, metadata, "qwen3moe")
    layers = hf.uniform_layers([None] * count)
    dense = DecoderConfig(**fields, qk_norm=True, layers=layers, ropes=(gguf.read_rope(settings, "qwen3moe"),))
    return with_experts(dense, gguf_moe(settings), [True] * count)


QWEN3_MOE = Family("qwen3_moe", _qwen3_moe, HF_NAMES, _gguf, GGUF_NAMES)
