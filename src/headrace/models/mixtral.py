"""Mixtral: Mistral with a mixture of experts in every layer (arXiv:2401.04088). Its GGUF architecture is `llama`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.models import hf
from headrace.models.config import DecoderConfig
from headrace.models.family import GGUF_NAMES, HF_NAMES, Family
from headrace.models.llama import LLAMA
from headrace.models.moe_settings import HF_KEYS, hf_moe, with_experts
from headrace.settings import Settings

__all__ = ["MIXTRAL"]

_BLOCK = "model.layers.{i}.block_sparse_moe."
_NAMES = replace(
    HF_NAMES,
    router=_BLOCK + "gate",
    expert_gate=_BLOCK + "experts.{e}.w1",
    expert_up=_BLOCK + "experts.{e}.w3",
    expert_down=_BLOCK + "experts.{e}.w2",
)


def _mixtral(config: Mapping[str, Any]) -> DecoderConfig:
    settings = Settings(config)
    count = settings.layers("num_hidden_layers")
    kind = "full_attention" if settings.get("sliding_window") is None else "sliding_attention"
    windows = hf.layer_windows(config, "mixtral", [kind] * count)
    moe = hf_moe(settings, settings.integer("intermediate_size"), renormalize=True)
    return with_experts(hf.simple_decoder(config, "mixtral", windows, HF_KEYS), moe, [True] * count)


MIXTRAL = Family("mixtral", _mixtral, _NAMES, LLAMA.from_gguf, GGUF_NAMES, gguf_interleaved=True)
