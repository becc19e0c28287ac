"""Maps the architecture names of checkpoints to families."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from headrace.errors import CheckpointError, UnsupportedModel, excerpt
from headrace.models.config import DecoderConfig
from headrace.models.deepseek_moe import DOTS1, GLM4_MOE
from headrace.models.family import Family
from headrace.models.gemma3 import GEMMA3
from headrace.models.llama import LLAMA, MISTRAL
from headrace.models.mixtral import MIXTRAL
from headrace.models.qwen import QWEN2, QWEN3
from headrace.models.qwen_moe import QWEN2_MOE, QWEN3_MOE
from headrace.settings import Settings

__all__ = ["GGUF_ARCHITECTURES", "HF_ARCHITECTURES", "from_gguf", "from_hf"]

HF_ARCHITECTURES: Mapping[str, Family] = MappingProxyType(
    {
        "Dots1ForCausalLM": DOTS1,
        "Gemma3ForCausalLM": GEMMA3,
        "Glm4MoeForCausalLM": GLM4_MOE,
        "LlamaForCausalLM": LLAMA,
        "MistralForCausalLM": MISTRAL,
        "MixtralForCausalLM": MIXTRAL,
        "Qwen2ForCausalLM": QWEN2,
        "Qwen2MoeForCausalLM": QWEN2_MOE,
        "Qwen3ForCausalLM": QWEN3,
        "Qwen3MoeForCausalLM": QWEN3_MOE,
    }
)
GGUF_ARCHITECTURES: Mapping[str, Family] = MappingProxyType(
    {
        "dots1": DOTS1,
        "gemma3": GEMMA3,
        "glm4moe": GLM4_MOE,
        "llama": LLAMA,
        "qwen2": QWEN2,
        "qwen2moe": QWEN2_MOE,
        "qwen3": QWEN3,
        "qwen3moe": QWEN3_MOE,
    }
)

_VARIANTS = re.compile("(?:ForSequenceClassification|(?:Text)?Model)$")
"""Endings of the names of the same decoder without its output matrix, or with another head."""

FindFamily = Callable[[str], Family | None]
"""Architecture → a plugin's family, None if there is none. Called for names that the tables above don't have."""


def from_hf(config: Mapping[str, Any], more: FindFamily = lambda name: None) -> tuple[Family, DecoderConfig]:
    """The family and configuration of a config.json. Code named by `auto_map` is never run.

    Raises UnsupportedModel that names the architecture and the supported ones.
    """
    architectures = Settings(config).texts("architectures")
    if not architectures:
        raise CheckpointError("field 'architectures' is missing")
    name = architectures[0]
    plain = _VARIANTS.sub("ForCausalLM", name)
    family = _lookup(plain if plain in HF_ARCHITECTURES else name, HF_ARCHITECTURES, more)
    decoder = family.from_hf(config)
    if not decoder.draft_layers:
        decoder = replace(decoder, draft_layers=Settings(config).count("num_nextn_predict_layers", 0))
    return family, decoder


def from_gguf(metadata: Mapping[str, Any], more: FindFamily = lambda name: None) -> tuple[Family, DecoderConfig]:
    """The family and configuration of a GGUF's metadata.

    Raises UnsupportedModel that names the architecture and the supported ones.
    """
    name = Settings(metadata).text("general.architecture")
    family = _lookup(name, GGUF_ARCHITECTURES, more)
    return family, family.from_gguf(metadata)


def _lookup(name: str, table: Mapping[str, Family], more: FindFamily) -> Family:
    found = table.get(name) or more(name)
    if found is None:
        raise UnsupportedModel(
            f"architecture {excerpt(name)} is not supported: {', '.join(sorted(table))} are, and no plugin provides it"
        )
    return found
