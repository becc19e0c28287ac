"""Names of the form in which a checkpoint stores its weights, as users know them: `Q4_K_M`, `FP8`, `AWQ`, `W4A16`,
`BF16`. Without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.quant.gguf_types import BLOCK_SIZES, TYPE_NAMES

__all__ = ["FLOAT_NAMES", "config_level", "gguf_level"]

FLOAT_NAMES: Mapping[str, str] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""By the type in a config.json."""
_GUESSED = 1024
"""A bit of `general.file_type`: the writer was not sure of it."""
_FILE_TYPES: Mapping[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
    39: "NVFP4",
}
"""`general.file_type` of GGUF (`llama_ftype` of llama.cpp's `llama.h`)."""
_TENSOR_TYPES = {0: "F32", 1: "F16", 30: "BF16", **{kind: name.upper() for kind, (name, *_) in BLOCK_SIZES.items()}}
_METHODS = {"auto-round": "AutoRound"}
"""By `quant_method`; others are written in capitals."""
_BLOCK_FLOATS = ("mxfp4", "mxfp8", "nvfp4")


def gguf_level(file_type: object, tensors: Iterable[tuple[int, int]]) -> str:
    """The level of a GGUF file by its `general.file_type`; if that tells nothing, the type that most bytes have.
    `tensors`: type and bytes of each. Empty: there is none."""
    known = _FILE_TYPES.get(file_type & ~_GUESSED) if isinstance(file_type, int) else None
    if known is not None:
        return known
    sizes = Counter[int]()
    for kind, size in tensors:
        sizes[kind] += size
    most = sizes.most_common(1)
    return _TENSOR_TYPES.get(most[0][0]) or TYPE_NAMES.get(most[0][0], "") if most else ""


def config_level(quantization: Mapping[str, Any]) -> str:
    """The level by the `quantization_config` of a config.json, which nothing has checked. Empty: it does not tell."""
    method = quantization.get("quant_method")
    if not isinstance(method, str):
        return ""
    if method == "compressed-tensors":
        groups = quantization.get("config_groups")
        values = groups.values() if isinstance(groups, dict) else ()
        found = [_group_level(one, quantization.get("format")) for one in values if isinstance(one, dict)]
        return ", ".join(dict.fromkeys(filter(None, found)))
    if method.startswith("modelopt"):
        return _modelopt_level(quantization) or method.upper()
    return _METHODS.get(method, method.upper())


def _modelopt_level(quantization: Mapping[str, Any]) -> str:
    """`quant_algo`, as `FP8` or `NVFP4`; of mixed precision, that of each layer. Empty: it does not tell."""
    algorithm = quantization.get("quant_algo")
    layers = quantization.get("quantized_layers")
    if algorithm == "MIXED_PRECISION" and isinstance(layers, dict):
        named = [one.get("quant_algo") for one in layers.values() if isinstance(one, dict)]
        return ", ".join(dict.fromkeys(name for name in named if isinstance(name, str) and name)) or algorithm
    return algorithm if isinstance(algorithm, str) else ""


def _group_level(group: Mapping[str, Any], whole: object) -> str:
    """`whole`: the format of all groups that state none."""
    layout, weights, inputs = (group.get(name) for name in ("format", "weights", "input_activations"))
    layout = layout if isinstance(layout, str) else whole
    for name in _BLOCK_FLOATS:
        if isinstance(layout, str) and layout.startswith(name):
            return name.upper()
    bits = weights.get("num_bits") if isinstance(weights, dict) else None
    if not isinstance(weights, dict) or not isinstance(bits, int):
        return ""
    if weights.get("type") == "float":
        return f"FP{bits}"
    wide = inputs.get("num_bits") if isinstance(inputs, dict) else None
    return f"W{bits}A{wide if isinstance(wide, int) else 16}"
