"""`quant_method` names to schemes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import UnsupportedModel, excerpt
from headrace.quant.awq import AWQ
from headrace.quant.compressed_tensors import CompressedTensors
from headrace.quant.fp8 import FP8
from headrace.quant.gptq import GPTQ
from headrace.quant.scheme import WHERE, Scheme
from headrace.settings import Settings

__all__ = ["Make", "scheme_of"]

Make = Callable[[Mapping[str, Any]], Scheme]
"""A `quantization_config` → its scheme. Raises UnsupportedModel and CheckpointError."""


def _auto_round(config: Mapping[str, Any]) -> Scheme:
    """auto-round's own name for the layouts that it borrows; under its own name zero points are stored as they are."""
    settings = Settings(config, within=WHERE)
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


_PACKINGS: dict[str, Make] = {
    "auto_round": _whole_zeros,
    "auto_round:auto_awq": AWQ,
    "auto_round:auto_gptq": GPTQ,
    "auto_round:awq": AWQ,
    "auto_round:gptq": GPTQ,
    "auto_round:gptqmodel": _whole_zeros,
}
_METHODS: dict[str, Make] = {
    "auto-round": _auto_round,
    "awq": AWQ,
    "compressed-tensors": CompressedTensors,
    "fp8": FP8,
    "gptq": GPTQ,
}


def scheme_of(config: Mapping[str, Any], more: Callable[[str], Make | None] = lambda method: None) -> Scheme | None:
    """The scheme that a config.json names, None for plain floats. `more` is asked for methods that are not built in.

    Raises UnsupportedModel naming what is not built.
    """
    settings = Settings(config)
    found = settings.section(WHERE) or settings.section("compression_config")
    if found is None or not found.values():
        return None
    method = found.optional_text("quant_method")
    make = None if method is None else _METHODS.get(method) or more(method)
    if make is None:
        raise UnsupportedModel(
            f"quant_method {excerpt(method)} is not supported: {', '.join(_METHODS)} are, and no plugin offers it"
        )
    return make(found.values())
