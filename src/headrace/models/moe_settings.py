"""Reads the settings of mixture-of-experts layers from a config.json or a GGUF's metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.errors import CheckpointError
from headrace.kernels.moe.routing import Routing
from headrace.models.config import DecoderConfig
from headrace.models.moe import MoE
from headrace.settings import Settings

__all__ = ["GGUF_KEYS", "HF_KEYS", "gguf_moe", "hf_moe", "with_experts"]

HF_KEYS = frozenset({"num_experts", "num_local_experts"})
GGUF_KEYS = frozenset({"expert_count", "expert_feed_forward_length", "expert_used_count"})
"""Keys that a family with experts reads itself, in a config.json and in a GGUF."""


def hf_moe(settings: Settings, intermediate: int, renormalize: bool) -> MoE:
    """Experts chosen by softmax, from a config.json. Raises CheckpointError for a missing or impossible number."""
    count = settings.integer("num_experts", settings.optional_integer("num_local_experts"))
    return _checked(count, intermediate, Routing(settings.integer("num_experts_per_tok"), "softmax", renormalize))


def gguf_moe(settings: Settings) -> MoE:
    """Experts chosen by softmax with renormalized shares, from a GGUF, which does not state either."""
    width = settings.integer("expert_feed_forward_length", settings.optional_integer("feed_forward_length"))
    return _checked(settings.integer("expert_count"), width, Routing(settings.integer("expert_used_count")))


def with_experts(config: DecoderConfig, moe: MoE, sparse: Sequence[bool]) -> DecoderConfig:
    """The same decoder with experts in the layers that are `sparse`."""
    layers = tuple(replace(layer, dense=not own) for layer, own in zip(config.layers, sparse, strict=True))
    return replace(config, moe=moe, layers=layers)


def _checked(count: int, width: int, routing: Routing) -> MoE:
    if not routing.fits(count):
        raise CheckpointError(f"{routing.top_k} experts per token, but there are {count}")
    return MoE(count, width, routing)
