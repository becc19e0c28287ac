"""Gemma 3, text only: sandwich norms, head norms, five local layers per global layer (arXiv:2503.19786)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.models import gguf, hf
from headrace.models.config import DecoderConfig, LayerConfig, Rope
from headrace.models.family import GGUF_SANDWICH, HF_SANDWICH, Family
from headrace.settings import Settings

__all__ = ["GEMMA3"]

_GLOBAL, _LOCAL = 0, 1
_DEFAULTS = {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 256, "tie_word_embeddings": True}
"""Fields that Gemma's configurations leave out, with their default values."""

_NO_SUCH_FEATURE = {"attn_logit_softcapping": None}
"""Gemma 3 inherited this setting, but its attention has no soft cap, and transformers does not apply one."""


def _gemma3(config: Mapping[str, Any]) -> DecoderConfig:
    config = {**_DEFAULTS, **config}
    settings = Settings(config)
    settings.refuse("gemma3", _NO_SUCH_FEATURE)
    pattern = settings.integer("sliding_window_pattern", 6)
    windows = hf.layer_windows(config, "gemma3", _types(settings.layers("num_hidden_layers"), pattern))
    fields = hf.base_fields(config, "gemma3", "hidden_activation")
    bias = settings.flag("attention_bias", False)
    return DecoderConfig(
        **fields,
        layers=_layers(windows),
        ropes=_ropes(config),
        qk_norm=True,
        sandwich_norm=True,
        embedding_scale=fields["hidden"] ** 0.5,
        attention_scale=settings.positive("query_pre_attn_scalar", 256) ** -0.5,
        logits_soft_cap=settings.optional_positive("final_logit_softcapping"),
        qkv_bias=bias,
        output_bias=bias,
    )


def _types(count: int, pattern: int) -> list[str]:
    """The layer types: every `pattern`-th layer is global."""
    return ["full_attention" if (index + 1) % pattern == 0 else "sliding_attention" for index in range(count)]


def _layers(windows: list[int | None]) -> tuple[LayerConfig, ...]:
    return tuple(LayerConfig(_GLOBAL if window is None else _LOCAL, window) for window in windows)


def _ropes(config: Mapping[str, Any]) -> tuple[Rope, Rope]:
    given = Settings(config).section("rope_parameters")
    if given is not None and {"full_attention", "sliding_attention"} & set(given.names()):
        whole, local = (_values(given.section(kind)) for kind in ("full_attention", "sliding_attention"))
    else:
        whole = hf.rope_parameters(config)
        local = {"rope_theta": config.get("rope_local_base_freq")}
    return hf.read_rope(whole, config, "gemma3", 1e6), hf.read_rope(local, config, "gemma3", 1e4)


def _values(section: Settings | None) -> dict[str, Any]:
    return {} if section is None else section.values()


def _gguf(metadata: Mapping[str, Any]) -> DecoderConfig:
    """Gemma 3 from a GGUF. Layer pattern, local base and attention scale, which a GGUF leaves out, are the family's."""
    settings = gguf.settings_of(metadata, "gemma3")
    settings.refuse("gemma3", _NO_SUCH_FEATURE)
    count = settings.layers("block_count")
    window = settings.integer("attention.sliding_window")
    types = _types(count, settings.integer("attention.sliding_window_pattern", 6))
    windows = [window if kind == "sliding_attention" else None for kind in types]
    fields = gguf.base_fields(settings, metadata, "gemma3")
    rope = gguf.read_rope(settings, "gemma3", 1e6)
    local = Rope(settings.base("rope.freq_base_swa", 1e4), rope.rotary_dim)
    largest = count == 62  # the 27B divides by hidden / heads instead of the head's size
    return DecoderConfig(
        # Unlike in other families, the stated context length already includes the scaling.
        **{**fields, "activation": "gelu_tanh", "max_position": settings.integer("context_length")},
        layers=_layers(windows),
        ropes=(rope, local),
        qk_norm=True,
        sandwich_norm=True,
        embedding_scale=fields["hidden"] ** 0.5,
        attention_scale=(fields["hidden"] / fields["num_q_heads"]) ** -0.5 if largest else None,
        logits_soft_cap=settings.optional_positive("final_logit_softcapping"),
    )


GEMMA3 = Family("gemma3", _gemma3, HF_SANDWICH, _gguf, GGUF_SANDWICH, norm_offset=1.0)
