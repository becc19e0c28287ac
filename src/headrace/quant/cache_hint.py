"""Calibrated scales of a checkpoint for an 8-bit KV cache: read and checked, but not used.

An 8-bit KV cache (`--kv-dtype float8_e4m3` or `int8`) stores a scale per token and head, which is at least as exact as
a calibrated scale. A wider cache, the default, does not round at all. So both meet the precision that the checkpoint
was calibrated for.
"""

from __future__ import annotations

import logging
from typing import Any

from headrace.errors import CheckpointError, UnsupportedModel, excerpt
from headrace.quant.checks import floats
from headrace.quant.scheme import TensorReader

__all__ = ["CacheHint"]

_log = logging.getLogger(__name__)
_KINDS = ("scale", "zero_point")


class CacheHint:
    """`kv_cache_scheme` of a `quantization_config`."""

    def __init__(self, scheme: Any, where: str) -> None:
        """`scheme`: compressed-tensors' arguments, AutoFP8's name of a type, or None.

        Raises UnsupportedModel if the width is not 8 bits, and CheckpointError for another type of value.
        """
        self._given = bool(scheme)
        if not self._given:
            return
        if not isinstance(scheme, (dict, str)):
            raise CheckpointError(f"field 'kv_cache_scheme' is {excerpt(scheme)}: expected an object or a name")
        bits = scheme.get("num_bits") if isinstance(scheme, dict) else 8
        if bits != 8:
            raise UnsupportedModel(f"{where}: kv_cache_scheme of {excerpt(bits)} bits is not supported: 8 are")
        _log.info(
            "%s: kv_cache_scheme: the KV cache is stored in kv_dtype (8-bit types with one scale per token); "
            "the checkpoint's own scales are not used",
            where,
        )

    def read(self, module: str, reader: TensorReader) -> None:
        """Read the scales of a key or value projection. Raises CheckpointError if one is not a positive number."""
        attention, _, projection = module.rpartition(".")
        if not self._given or projection not in ("k_proj", "v_proj"):
            return
        letter = projection[0]
        for stem in (f"{attention}.{letter}", f"{module}.output"):
            for kind in _KINDS:
                name = f"{stem}_{kind}"
                if not reader.has(name):
                    continue
                value = floats(reader, name) if kind == "scale" else reader.get(name)
                if kind == "scale" and not bool((value > 0).all()):
                    raise reader.error("has scales that are not above zero", name)
