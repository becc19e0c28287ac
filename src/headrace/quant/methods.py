"""Maps `quant_method` names to schemes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import UnsupportedModel, excerpt
from headrace.quant.awq import AWQ
from headrace.quant.compressed_tensors import CompressedTensors
from headrace.quant.fp8 import FP8
from headrace.quant.gptq import GPTQ
from headrace.quant.scheme import CONFIG_KEY, Scheme
from headrace.settings import Settings

__all__ = ["SchemeFactory", "scheme_of"]

SchemeFactory = Callable[[Mapping[str, Any]], Scheme]
"""Makes a scheme from a `quantization_config`. Raises UnsupportedModel and CheckpointError."""


def _auto_round(config: Mapping[str, Any]) -> Scheme:
    """The scheme of auto-round, which uses other methods' layouts. `auto_round` stores zero points unmodified."""
    settings = Settings(config, within=CONFIG_KEY)
    packing = settings.text("packing_format", "auto_round:auto_gptq")
    layers = [settings, *settings.sections("extra_config").values()]
    bits = min(layer.integer("act_bits", 16) for layer in layers)
    if packing not in _PACKINGS or bits < 16:
        inputs = f" with inputs of {bits} bits" if bits < 16 else ""
        known = ", ".join(_PACKINGS)
        raise UnsupportedModel(f"auto-round: packing_format {excerpt(packing)}{inputs} is not supported: {known} are")
    return _PACKINGS[packing](config)


def _whole_zeros(config: Mapping[str, Any]) -> Scheme:
    return GPTQ({**config, "checkpoint_format": "gptq_v2"})


_PACKINGS: dict[str, SchemeFactory] = {
    "auto_round": _whole_zeros,
    "auto_round:auto_awq": AWQ,
    "auto_round:auto_gptq": GPTQ,
    "auto_round:awq": AWQ,
    "auto_round:gptq": GPTQ,
    "auto_round:gptqmodel": _whole_zeros,
}
_METHODS: dict[str, SchemeFactory] = {
    "auto-round": _auto_round,
    "awq": AWQ,
    "compressed-tensors": CompressedTensors,
    "fp8": FP8,
    "gptq": GPTQ,
}


def scheme_of(
    config: Mapping[str, Any], more: Callable[[str], SchemeFactory | None] = lambda method: None
) -> Scheme | None:
    """The scheme of a config.json; None for plain floats. `more` resolves methods that are not built in.

    Raises UnsupportedModel that names the method or setting.
    """
    settings = Settings(config)
    found = settings.section(CONFIG_KEY) or settings.section("compression_config")
    if found is None or not found.values():
        return None
    method = found.optional_text("quant_method")
    make = None if method is None else _METHODS.get(method) or more(method)
    if make is None:
        raise UnsupportedModel(
            f"quant_method {excerpt(method)} is not supported: {', '.join(_METHODS)} are, and no plugin provides it"
        )
    return make(found.values())
