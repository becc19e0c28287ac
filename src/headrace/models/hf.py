"""Reads a Hugging Face config.json into fields of `DecoderConfig`, for all families."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from headrace.errors import CheckpointError, UnsupportedModel, excerpt
from headrace.models.config import Activation, DecoderConfig, LayerConfig, Rope
from headrace.settings import MOST_POSITIONS, WIDEST_HEAD, Settings

__all__ = ["activation", "base_fields", "layer_windows", "read_rope", "rope_parameters"]

_NEUTRAL: dict[str, Any] = {
    "attention_chunk_size": 0,
    "attention_multiplier": 1.0,
    "clip_qkv": 0,
    "embedding_multiplier": 1.0,
    "is_encoder_decoder": False,
    "logits_scaling": 1.0,
    "num_experts": 0,
    "num_local_experts": 0,
    "partial_rotary_factor": 1.0,
    "residual_multiplier": 1.0,
    "use_bidirectional_attention": False,
    "use_qk_norm": False,
}
"""Settings of other families that change the arithmetic: elsewhere they must have these values."""
_ORIGINAL = "original_max_position_embeddings"
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def base_fields(
    config: Mapping[str, Any], family: str, activation_key: str = "hidden_act", known: Collection[str] = ()
) -> dict[str, Any]:
    """Keyword arguments of `DecoderConfig` that all families read in the same way, without `layers` and `ropes`.

    `known` are settings that the family reads itself. Raises CheckpointError for a missing or absurd field,
    UnsupportedModel for an unsupported feature.
    """
    settings = Settings(config)
    settings.refuse(family, {key: value for key, value in _NEUTRAL.items() if key not in known})
    heads = settings.integer("num_attention_heads")
    kv_heads = settings.integer("num_key_value_heads", heads)
    hidden = settings.integer("hidden_size")
    if heads % kv_heads:
        raise CheckpointError(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    return {
        "family": family,
        "hidden": hidden,
        "num_q_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": settings.integer("head_dim", hidden // heads, WIDEST_HEAD),
        "intermediate": settings.integer("intermediate_size"),
        "vocab": settings.integer("vocab_size"),
        "max_position": settings.integer("max_position_embeddings", most=MOST_POSITIONS),
        "norm_eps": settings.positive("rms_norm_eps", 1e-6),
        "activation": activation(family, settings.text(activation_key, "silu")),
        "tied": settings.flag("tie_word_embeddings", False),
    }


def activation(family: str, name: str) -> Activation:
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(f"{family}: activation {excerpt(name)} is not supported: {', '.join(_ACTIVATIONS)} are")
    return _ACTIVATIONS[name]


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary settings as one dictionary: `rope_parameters`, or the older `rope_theta` and `rope_scaling`."""
    settings = Settings(config)
    merged = _plain(settings.section("rope_scaling"))
    if settings.get("rope_theta") is not None:
        merged["rope_theta"] = settings.get("rope_theta")
    merged.update(_plain(settings.section("rope_parameters")))
    if "type" in merged:
        merged.setdefault("rope_type", merged["type"])
    return merged


def _plain(section: Settings | None) -> dict[str, Any]:
    return {} if section is None else section.values()


def read_rope(parameters: Mapping[str, Any], config: Mapping[str, Any], family: str, theta: float = 10000.0) -> Rope:
    """The rotary embedding of one layer type. `theta` is the family's default base."""
    values = Settings(parameters, within="rope_parameters")
    settings = Settings(config)
    default = settings.integer("hidden_size") // settings.integer("num_attention_heads")
    head_dim = settings.integer("head_dim", default, WIDEST_HEAD)
    values.refuse(family, {"partial_rotary_factor": 1.0})
    base = values.base("rope_theta", theta)
    kind = values.text("rope_type", "default")
    if kind == "default":
        return Rope(base, head_dim)
    where = settings if values.get(_ORIGINAL) is None else values
    if kind == "linear":
        before = where.optional_integer(_ORIGINAL) or 0
        return Rope(base, head_dim, "linear", values.positive("factor"), before)
    if kind == "llama3":
        return _llama3(values, base, head_dim, where.integer(_ORIGINAL, most=MOST_POSITIONS))
    if kind == "yarn":
        longest = settings.integer("max_position_embeddings", most=MOST_POSITIONS)
        return _yarn(values, base, head_dim, where.integer(_ORIGINAL, longest, MOST_POSITIONS), longest, family)
    raise UnsupportedModel(
        f"{family}: rope_type {excerpt(kind)} is not supported: default, linear, llama3 and yarn are"
    )


def _llama3(values: Settings, base: float, rotary: int, original: int) -> Rope:
    low, high = values.positive("low_freq_factor"), values.positive("high_freq_factor")
    if low >= high:
        raise values.wrong("high_freq_factor", high, f"more than low_freq_factor, {low}")
    return Rope(base, rotary, "llama3", values.positive("factor"), original, low_freq_factor=low, high_freq_factor=high)


def _yarn(values: Settings, base: float, rotary: int, original: int, longest: int, family: str) -> Rope:
    values.refuse(family, {"mscale": None, "mscale_all_dim": None})
    return Rope(
        base,
        rotary,
        "yarn",
        values.positive("factor", longest / original),
        original,
        beta_fast=values.positive("beta_fast", 32.0),
        beta_slow=values.positive("beta_slow", 1.0),
        attention_factor=values.optional_positive("attention_factor"),
        truncate=values.flag("truncate", True),
    )


def layer_windows(config: Mapping[str, Any], family: str, default: list[str]) -> list[int | None]:
    """The sliding window of every layer, from `layer_types`, or from `default` if the config has none."""
    settings = Settings(config)
    count = settings.layers("num_hidden_layers")
    types = settings.texts("layer_types") or default
    if len(types) != count:
        raise CheckpointError(f"field 'layer_types' has {len(types)} entries for {count} layers")
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown:
        raise UnsupportedModel(f"{family}: layer type {excerpt(unknown[0])} is not supported")
    return [settings.integer("sliding_window") if kind == "sliding_attention" else None for kind in types]


def uniform_layers(windows: list[int | None]) -> tuple[LayerConfig, ...]:
    """Layers that share one rotary embedding."""
    return tuple(LayerConfig(0, window) for window in windows)


def simple_decoder(
    config: Mapping[str, Any], family: str, windows: list[int | None], known: Collection[str] = (), **more: Any
) -> DecoderConfig:
    """The configuration of a family with one rotary embedding: the shared fields, and `more`."""
    rope = read_rope(rope_parameters(config), config, family)
    fields = base_fields(config, family, known=known)
    fields["max_position"] = rope.context(fields["max_position"])
    return DecoderConfig(**{**fields, **more}, layers=uniform_layers(windows), ropes=(rope,))
