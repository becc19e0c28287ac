"""Families with DeepSeek's experts (arXiv:2401.06066, 2412.19437) and ordinary attention: dots.llm1 and GLM-4-MoE.

Experts are chosen by sigmoid scores, a correction bias and groups. The shared experts, stored as one wide MLP, process
every token. The first layers are dense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.errors import CheckpointError
from headrace.kernels.moe.routing import Routing
from headrace.models import gguf, hf
from headrace.models.config import DecoderConfig
from headrace.models.family import GGUF_NAMES, HF_NAMES, Family
from headrace.models.moe import MoE
from headrace.models.moe_settings import GGUF_KEYS, with_experts
from headrace.settings import Settings

__all__ = ["DOTS1", "GLM4_MOE"]

_SHARED = "model.layers.{i}.mlp.shared_experts."
_NAMES = replace(
    HF_NAMES,
    router_bias="model.layers.{i}.mlp.gate.e_score_correction_bias",
    shared_gate=_SHARED + "gate_proj",
    shared_up=_SHARED + "up_proj",
    shared_down=_SHARED + "down_proj",
)
_GGUF_NAMES = replace(GGUF_NAMES, router_bias="blk.{i}.exp_probs_b.bias")
_GLM_GGUF_NAMES = replace(_GGUF_NAMES, mlp_norm="blk.{i}.post_attention_norm")
_GGUF_KEYS = GGUF_KEYS | {
    "expert_gating_func", "expert_group_count", "expert_group_used_count", "expert_shared_count", "expert_weights_norm",
    "expert_weights_scale", "leading_dense_block_count", "nextn_predict_layers",
}  # fmt: skip
_PART = "partial_rotary_factor"
_SIGMOID = 2
"""GGUF's number of the sigmoid gating function."""


def _moe(settings: Settings, renormalize: bool) -> MoE:
    count, width = settings.integer("n_routed_experts"), settings.integer("moe_intermediate_size")
    routing = Routing(
        settings.integer("num_experts_per_tok"),
        "sigmoid",
        settings.flag("norm_topk_prob", renormalize),
        settings.positive("routed_scaling_factor", 1.0),
        settings.integer("n_group", 1),
        settings.integer("topk_group", 1),
    )
    return _checked(count, width, routing, settings.integer("n_shared_experts", 1))


def _gguf_moe(settings: Settings, arch: str) -> MoE:
    settings.refuse(arch, {"expert_gating_func": _SIGMOID})
    routing = Routing(
        settings.integer("expert_used_count"),
        "sigmoid",
        settings.flag("expert_weights_norm", False),
        settings.positive("expert_weights_scale", 1.0),
        settings.integer("expert_group_count", 1),
        settings.integer("expert_group_used_count", 1),
    )
    count, width = settings.integer("expert_count"), settings.integer("expert_feed_forward_length")
    return _checked(count, width, routing, settings.integer("expert_shared_count", 1))


def _checked(count: int, width: int, routing: Routing, shared: int) -> MoE:
    if not routing.fits(count):
        chosen = f"{routing.top_k} experts per token out of {routing.top_groups} of {routing.groups} groups"
        raise CheckpointError(f"{chosen}, but there are {count} experts")
    return MoE(count, width, routing, shared=width * shared, biased=True)


def _with_experts(dense: DecoderConfig, moe: MoE, first: int) -> DecoderConfig:
    """The same decoder with experts from layer `first` on."""
    return with_experts(dense, moe, [index >= first for index in range(len(dense.layers))])


def _dots1(config: Mapping[str, Any]) -> DecoderConfig:
    settings = Settings(config)
    count, bias = settings.layers("num_hidden_layers"), settings.flag("attention_bias", False)
    sliding = settings.get("sliding_window") is not None
    start = settings.count("max_window_layers", 62) if sliding else count
    types = ["sliding_attention" if index >= start else "full_attention" for index in range(count)]
    windows = hf.layer_windows(config, "dots1", types)
    dense = hf.simple_decoder(config, "dots1", windows, qk_norm=True, qkv_bias=bias, output_bias=bias)
    return _with_experts(dense, _moe(settings, renormalize=False), settings.count("first_k_dense_replace", 0))


def _glm4_moe(config: Mapping[str, Any]) -> DecoderConfig:
    settings = Settings(config)
    parameters = hf.rope_parameters(config)
    given = parameters.pop(_PART, None)
    part = Settings({_PART: given}).positive(_PART, settings.positive(_PART, 0.5))
    fields = hf.base_fields(config, "glm4_moe", known={_PART, "use_qk_norm"})
    rope = replace(hf.read_rope(parameters, config, "glm4_moe"), rotary_dim=int(fields["head_dim"] * part))
    dense = DecoderConfig(
        **{**fields, "max_position": rope.context(fields["max_position"])},
        layers=hf.uniform_layers([None] * settings.layers("num_hidden_layers")),
        ropes=(rope,),
        qk_norm=settings.flag("use_qk_norm", False),
        qkv_bias=settings.flag("attention_bias", False),
        draft_layers=settings.count("num_nextn_predict_layers", 0),
    )
    return _with_experts(dense, _moe(settings, renormalize=True), settings.count("first_k_dense_replace", 1))


def _gguf(metadata: Mapping[str, Any], arch: str, **more: Any) -> DecoderConfig:
    settings = gguf.settings_of(metadata, arch, _GGUF_KEYS)
    count, drafting = settings.layers("block_count"), settings.count("nextn_predict_layers", 0)
    if drafting >= count:
        raise settings.wrong("nextn_predict_layers", drafting, f"fewer than the {count} layers of block_count")
    dense = DecoderConfig(
        **gguf.base_fields(settings, metadata, arch),
        **more,
        layers=hf.uniform_layers([None] * (count - drafting)),
        ropes=(gguf.read_rope(settings, arch),),
        draft_layers=drafting,
    )
    return _with_experts(dense, _gguf_moe(settings, arch), settings.count("leading_dense_block_count", 0))


def _dots1_gguf(metadata: Mapping[str, Any]) -> DecoderConfig:
    return _gguf(metadata, "dots1", qk_norm=True)


def _glm4_moe_gguf(metadata: Mapping[str, Any]) -> DecoderConfig:
    """GLM-4-MoE from a GGUF. Only the larger size has head norms: the tensors of the file decide."""
    return _gguf(metadata, "glm4moe")


DOTS1 = Family("dots1", _dots1, _NAMES, _dots1_gguf, _GGUF_NAMES)
GLM4_MOE = Family("glm4_moe", _glm4_moe, _NAMES, _glm4_moe_gguf, _GLM_GGUF_NAMES)
