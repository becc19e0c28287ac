"""Reads GGUF metadata into fields of `DecoderConfig` for all families (key names: the GGUF specification of ggml)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.errors import CheckpointError, UnsupportedModel, excerpt
from headrace.models.config import Rope
from headrace.settings import MOST_POSITIONS, WIDEST_HEAD, Settings, same

__all__ = ["base_fields", "read_rope", "settings_of"]

_READ = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.value_length",
    "attn_logit_softcapping",
    "block_count",
    "classifier.output_labels",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "final_logit_softcapping",
    "pooling_type",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "tensor_data_layout",
    "vocab_size",
}
_NEUTRAL = {
    "attention.causal": True,
    "expert_count": 0,
    "expert_feed_forward_length": 0,
    "expert_used_count": 0,
    "rope.scale_linear": 1.0,
}
"""Keys that have no effect at these values."""


def settings_of(metadata: Mapping[str, Any], arch: str, more: Collection[str] = ()) -> Settings:
    """The architecture's keys; `more` are those that only this family reads.

    Raises UnsupportedModel for an unknown key, because it may change the arithmetic.
    """
    for key, value in metadata.items():
        if not key.startswith(f"{arch}."):
            continue
        name = key[len(arch) + 1 :]
        if name not in _READ and name not in more and not (name in _NEUTRAL and same(value, _NEUTRAL[name])):
            raise UnsupportedModel(f"{arch}: GGUF key {excerpt(key)} = {excerpt(value)} is not supported")
    return Settings(metadata, f"{arch}.")


def base_fields(settings: Settings, metadata: Mapping[str, Any], arch: str) -> dict[str, Any]:
    """Keyword arguments of `DecoderConfig` that all families read in the same way."""
    heads = _per_layer(settings, "attention.head_count")
    kv_heads = _per_layer(settings, "attention.head_count_kv", heads)
    hidden = settings.integer("embedding_length")
    head_dim = settings.integer("attention.key_length", hidden // heads, WIDEST_HEAD)
    if settings.integer("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(f"{arch}: keys and values of different sizes are not supported")
    if heads % kv_heads:
        raise CheckpointError(f"attention.head_count {heads} is not a multiple of attention.head_count_kv {kv_heads}")
    return {
        "family": arch,
        "hidden": hidden,
        "num_q_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate": _per_layer(settings, "feed_forward_length"),
        "vocab": settings.integer("vocab_size", _vocabulary(metadata)),
        "max_position": read_rope(settings, arch).context(settings.integer("context_length", most=MOST_POSITIONS)),
        "norm_eps": settings.positive("attention.layer_norm_rms_epsilon"),
    }


def read_rope(settings: Settings, arch: str, theta: float = 10000.0) -> Rope:
    """The rotary embedding of full-attention layers."""
    rope = _scaled(settings, arch, theta)
    # In this format, the factor multiplies the method's own.
    more = settings.positive("rope.scaling.attn_factor", 1.0)
    return rope if more == 1.0 else replace(rope, attention_factor=rope.magnitude * more)


def _scaled(settings: Settings, arch: str, theta: float) -> Rope:
    heads = _per_layer(settings, "attention.head_count")
    head_dim = settings.integer("attention.key_length", settings.integer("embedding_length") // heads, WIDEST_HEAD)
    rotary = settings.integer("rope.dimension_count", head_dim, most=head_dim)
    base = settings.base("rope.freq_base", theta)
    kind = settings.text("rope.scaling.type", "none")
    if kind == "none":
        return Rope(base, rotary)
    factor = settings.positive("rope.scaling.factor", 1.0)
    if kind == "linear":
        original = settings.optional_integer("rope.scaling.original_context_length")
        return Rope(base, rotary, "linear", factor, original or 0)
    if kind == "yarn":
        original = settings.integer("rope.scaling.original_context_length", settings.integer("context_length"))
        return Rope(
            base,
            rotary,
            "yarn",
            factor,
            original,
            beta_fast=settings.positive("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=settings.positive("rope.scaling.yarn_beta_slow", 1.0),
        )
    raise UnsupportedModel(f"{arch}: rope.scaling.type {excerpt(kind)} is not supported: none, linear and yarn are")


def _per_layer(settings: Settings, key: str, default: int | None = None) -> int:
    """A count that may be given per layer. Raises UnsupportedModel if the layers differ."""
    value = settings.get(key)
    if not isinstance(value, (list, np.ndarray)):
        return settings.integer(key, default)
    entries = value.tolist() if isinstance(value, np.ndarray) else value
    distinct = {Settings({key: entry}, within=settings.name("")[:-1]).integer(key) for entry in entries}
    if len(distinct) != 1:
        raise UnsupportedModel(f"GGUF key {settings.name(key)!r} differs from layer to layer: not supported")
    return distinct.pop()


def _vocabulary(metadata: Mapping[str, Any]) -> int | None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and (isinstance(tokens, str) or not isinstance(tokens, Sequence)):
        raise CheckpointError(f"field 'tokenizer.ggml.tokens' is {excerpt(tokens)}: expected a list of strings")
    return None if tokens is None else len(tokens)
