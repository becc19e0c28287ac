"""The `fp8` method of Hugging Face checkpoints (DeepSeek's, Qwen's, AutoFP8's).

Weights are E4M3 with one scale per 128 x 128 tile or one scale per matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from headrace.errors import UnsupportedModel, excerpt
from headrace.kernels.weight import Weight
from headrace.quant.activations import log_token_scales
from headrace.quant.cache_hint import CacheHint
from headrace.quant.checks import expect, floats, one_scale
from headrace.quant.containers import fp8_weight
from headrace.quant.scale_tiles import column_groups, expand_tiles
from headrace.quant.scheme import CONFIG_KEY, TensorReader
from headrace.settings import Settings

__all__ = ["FP8"]


class FP8:
    """The `fp8` scheme."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = Settings(config, within=CONFIG_KEY)
        block = settings.pair("weight_block_size")
        inputs = settings.text("activation_scheme", "dynamic")
        settings.refuse("fp8", {"scale_fmt": "float"})
        if inputs not in ("dynamic", "static"):
            raise UnsupportedModel(f"fp8: activation_scheme {excerpt(inputs)} is not supported: dynamic and static are")
        if block is not None and (inputs != "dynamic" or block[1] != 128):
            raise UnsupportedModel(
                f"fp8: tiles of {list(block)} with {inputs} inputs are not supported: columns of 128, dynamic are"
            )
        if block is None and inputs == "dynamic":
            log_token_scales("fp8")
        self._static = inputs == "static"
        self._cache = CacheHint(settings.get("kv_cache_scheme"), "fp8")
        self._block = block

    def covers(self, module: str, reader: TensorReader) -> bool:
        self._cache.read(module, reader)
        return reader.has(f"{module}.weight_scale_inv") or reader.has(f"{module}.weight_scale")

    def load(self, module: str, shape: tuple[int, int], reader: TensorReader) -> Weight:
        name = f"{module}.weight"
        codes = expect(reader, name, reader.get(name), shape, torch.float8_e4m3fn)
        scale = f"{module}.weight_scale_inv" if reader.has(f"{module}.weight_scale_inv") else f"{module}.weight_scale"
        scales = expand_tiles(reader, scale, floats(reader, scale), shape, self._block or shape)
        size = self._block[1] if self._block else None
        weight = fp8_weight(codes, scales, column_groups(shape[1], scales.shape[1], size), name)
        if self._block is not None:
            weight.activation = "fp8_group128"
        elif self._static:
            weight.activation = "fp8_tensor"
            weight.tensors["input_scale"] = one_scale(reader, f"{module}.input_scale")
        else:
            weight.activation = "fp8_token"
        return weight
