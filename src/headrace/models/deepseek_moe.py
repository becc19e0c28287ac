"""Families whose experts are DeepSeek's (arXiv:2401.06066, 2412.19437) under ordinary attention: dots.llm1 and GLM-4-MoE.

Experts are chosen by sigmoid scores, a correction bias and groups; shared experts, one wide MLP, see every token; the first layers
are dense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.kernels.moe.routing import Routing
from headrace.models import hf
from headrace.models.config import DecoderConfig
from headrace.models.family import GGUF_NAMES, HF_NAMES, Family
from headrace.models.moe import MoE
from headrace.models.moe_settings import with_experts
from headrace.models.settings import Settings

__all__ = ["DOTS1", "GLM4_MOE"]

_SHARED = "model.layers.{i}.mlp.shared_experts."
_NAMES = replace(
    HF_NAMES,
    router_bias="model.layers.{i}.mlp.gate.e_score_correction_bias",
    shared_gate=_SHARED + "gate_proj",
    shared_up=_SHARED + "up_proj",
    shared_down=_SHARED + "down_proj",
)
_DRAFTING = r"model\.layers\.(46|92)\..*"
"""GLM's layer behind the last, which drafts a further token, in either size."""


def _moe(settings: Settings, renormalize: bool) -> MoE:
    count, width = settings.integer("n_routed_experts"), settings.integer("moe_intermediate_size")
    routing = Routing(
        settings.integer("num_experts_per_tok"),
        "sigmoid",
        settings.flag("norm_topk_prob", renormalize),
        settings.number("routed_scaling_factor", 1.0),
        settings.integer("n_group", 1),
        settings.integer("topk_group", 1),
    )
    if not routing.fits(count):
        chosen = f"{routing.top_k} experts a token out of {routing.top_groups} of {routing.groups} groups"
        raise CheckpointError(f"{chosen}, but there are {count} experts")
    return MoE(count, width, routing, shared=width * settings.integer("n_shared_experts", 1), biased=True)


def _with_experts(dense: DecoderConfig, settings: Settings, moe: MoE, first: int) -> DecoderConfig:
    """The first layers, `first` of them where the settings don't say, stay dense."""
    given = settings.get("first_k_dense_replace")
    plain = first if given is None else given
    if isinstance(plain, bool) or not isinstance(plain, int) or plain < 0:
        raise CheckpointError(f"field 'first_k_dense_replace' is {str(plain)[:60]}: expected a number of layers")
    return with_experts(dense, moe, [index >= plain for index in range(len(dense.layers))])


def _dots1(config: Mapping[str, Any]) -> DecoderConfig:
    settings = Settings(config)
    count, bias = settings.layers("num_hidden_layers"), settings.flag("attention_bias", False)
    sliding = settings.get("sliding_window") is not None
    start = settings.integer("max_window_layers", 62) if sliding else count
    types = ["sliding_attention" if index >= start else "full_attention" for index in range(count)]
    windows = hf.layer_windows(config, "dots1", types)
    dense = hf.simple_decoder(config, "dots1", windows, qk_norm=True, qkv_bias=bias, output_bias=bias)
    return _with_experts(dense, settings, _moe(settings, renormalize=False), 0)


def _glm4_moe(config: Mapping[str, Any]) -> DecoderConfig:
    settings = Settings(config)
    parameters = hf.rope_parameters(config)
    part = parameters.pop("partial_rotary_factor", None) or settings.number("partial_rotary_factor", 0.5)
    fields = hf.base_fields(config, "glm4_moe", known={"partial_rotary_factor", "use_qk_norm"})
    rope = replace(hf.read_rope(parameters, config, "glm4_moe"), rotary_dim=int(fields["head_dim"] * part))
    dense = DecoderConfig(
        **fields,
        layers=hf.uniform_layers([None] * settings.layers("num_hidden_layers")),
        ropes=(rope,),
        qk_norm=settings.flag("use_qk_norm", False),
        qkv_bias=settings.flag("attention_bias", False),
    )
    return _with_experts(dense, settings, _moe(settings, renormalize=True), 1)


def _no_gguf(metadata: Mapping[str, Any]) -> DecoderConfig:
    raise UnsupportedModel(f"{metadata.get('general.architecture')}: only safetensors of this family are read")


DOTS1 = Family("dots1", _dots1, _NAMES, _no_gguf, GGUF_NAMES)
GLM4_MOE = Family("glm4_moe", _glm4_moe, replace(_NAMES, ignored=(*_NAMES.ignored, _DRAFTING)), _no_gguf, GGUF_NAMES)
